"""What must not be submitted: a secret in the job script, or on the command line of a step, which others can read."""

from __future__ import annotations

from muster.errors import Mistake
from muster.rundir.redaction import redacted, scrubbed, secret_values
from muster.spec import JobSpec
from muster.spec.flags import long_flag

UNEXPOSED = {"command", "env", "services"}  # these travel in files, for the user's eyes alone where they hold a secret


def refuse_exposed(spec: JobSpec) -> None:
    """Refuse a job that would write a secret into its script; the environment is the place for it."""
    known = secret_values(spec.env)
    values = spec.model_dump(mode="json", exclude=UNEXPOSED | {"sbatch"}, exclude_unset=True)
    exposed = [long_flag(name) for name, value in values.items() if scrubbed(value, known) != value]
    texts = {key: f"{key}={value}" for key, value in spec.sbatch.items() if value is not None}
    exposed += [f"--sbatch {key}" for key, text in texts.items() if redacted(text, known) != text]
    if exposed:
        raise Mistake(
            f"{', '.join(exposed)}: holds what looks like a secret, and would stand in the job script and in process"
            " lists; export it before `muster run`, give it with --env, or read it from a file (VAR=$(cat FILE))"
        )
