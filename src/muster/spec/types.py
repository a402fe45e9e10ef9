"""Define the types of the job's fields: Python types with functions of `validators` attached."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from muster.spec import ray_values, validators

TIME = "a duration: seconds, or 90s, 10m, 1h30m"
SIZE = "a number of bytes, or with a unit: 512M, 64G, 1T"

Count = Annotated[int, BeforeValidator(validators.whole_number), Field(ge=1)]
CountOrZero = Annotated[int, BeforeValidator(validators.whole_number), Field(ge=0)]
Line = Annotated[str, AfterValidator(validators.one_line)]
Word = Annotated[str, AfterValidator(validators.no_nul)]
ShellText = Annotated[str, AfterValidator(validators.script)]
Seconds = Annotated[float, BeforeValidator(validators.seconds)]
Deadline = Annotated[Seconds, AfterValidator(validators.more_than_zero)]
Size = Annotated[int, BeforeValidator(validators.size), Field(ge=1)]
SizeOrZero = Annotated[int, BeforeValidator(validators.size), AfterValidator(validators.log_size)]
EnvName = Annotated[str, AfterValidator(validators.env_name)]
PassedValue = Annotated[str, AfterValidator(validators.no_control)]

RayResources = Annotated[
    dict[Annotated[str, AfterValidator(ray_values.resource_name)], CountOrZero],
    BeforeValidator(validators.empty_for_none),
]
RayLabels = Annotated[
    dict[Annotated[str, AfterValidator(ray_values.label_key)], Annotated[str, AfterValidator(validators.label)]],
    BeforeValidator(validators.empty_for_none),
]
