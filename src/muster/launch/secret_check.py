"""Refuse jobs with a secret in the job script or on a command line, which others can read."""

from __future__ import annotations

from muster.errors import Mistake
from muster.rundir.redaction import redacted, scrubbed, secret_values
from muster.spec import JobSpec
from muster.spec.flags import long_flag

_PRIVATE_FIELDS = {"command", "env", "services"}  # in files that only the user can read if they hold a secret


def refuse_exposed(spec: JobSpec) -> None:
    """Raise Mistake if a field that the job script contains looks like a secret."""
    known = secret_values(spec.env)
    values = spec.model_dump(mode="json", exclude=_PRIVATE_FIELDS | {"sbatch"}, exclude_unset=True)
    exposed = [long_flag(name) for name, value in values.items() if scrubbed(value, known) != value]
    texts = {key: f"{key}={value}" for key, value in spec.sbatch.items() if value is not None}
    exposed += [f"--sbatch {key}" for key, text in texts.items() if redacted(text, known) != text]
    if exposed:
        raise Mistake(
            f"{', '.join(exposed)}: contains what looks like a secret, which would be visible in the job script and in"
            " process lists; export it before `muster run`, use --env, or read it from a file (VAR=$(cat FILE))"
        )
