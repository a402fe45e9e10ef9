"""The job: what a user asks Muster to run, from a job file, from flags or from Python."""

from muster.spec.errors import SpecError
from muster.spec.load import explain_job, load_job
from muster.spec.model import JobSpec

__all__ = ["JobSpec", "SpecError", "explain_job", "load_job"]
