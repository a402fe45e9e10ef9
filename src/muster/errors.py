"""What a backend refuses, in one line that says what to do."""

from __future__ import annotations


class BackendError(Exception):
    """The job cannot be prepared, submitted or ended here."""


class SubmissionRefused(BackendError):
    """Slurm said no: there is no job."""


class Mistake(BackendError):
    """What the user asked for cannot be: a path that is not there, more nodes than the allocation has."""
