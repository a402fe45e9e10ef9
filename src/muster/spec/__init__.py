"""Define the job spec and load it from settings, a job file, flags or Python."""

from muster.spec.errors import SpecError
from muster.spec.load import explain_job, load_job
from muster.spec.model import JobSpec

__all__ = ["JobSpec", "SpecError", "explain_job", "load_job"]
