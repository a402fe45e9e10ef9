"""The types that the job's fields are made of: each a Python type with the checks of `values` attached."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from muster.spec import validators
from muster.spec.flags import Flag

TIME = "a length of time: seconds, or 90s, 10m, 1h30m"
SIZE = "a number of bytes, or with a unit: 512M, 64G, 1T"

Count = Annotated[int, BeforeValidator(validators.whole_number), Field(ge=1)]
CountOrZero = Annotated[int, BeforeValidator(validators.whole_number), Field(ge=0)]
Line = Annotated[str, AfterValidator(validators.one_line)]
Word = Annotated[str, AfterValidator(validators.no_nul)]
ShellText = Annotated[str, AfterValidator(validators.script)]
Seconds = Annotated[float, BeforeValidator(validators.seconds)]
Deadline = Annotated[Seconds, AfterValidator(validators.more_than_zero)]
Size = Annotated[int, BeforeValidator(validators.size), Field(ge=1)]
EnvName = Annotated[str, AfterValidator(validators.env_name)]
PassedValue = Annotated[str, AfterValidator(validators.no_control)]


def empty_for_none(value: Any) -> Any:
    """`env:` with every entry commented out reads as nothing; it means no entries."""
    return {} if value is None else value


def slurm_flag(help: str, allowed: str = "one line of text", **more: Any) -> Flag:
    """The flag of a field that is sbatch's own option of the same name."""
    return Flag(help=help, allowed=allowed, group="Slurm", **more)
