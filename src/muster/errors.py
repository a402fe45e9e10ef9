"""Errors of preparing, submitting and ending jobs; each message is one line that names the remedy."""

from __future__ import annotations


class BackendError(Exception):
    """The job cannot be prepared, submitted or ended here."""


class SubmissionRefused(BackendError):
    """Slurm refused the submission: there is no job."""


class Mistake(BackendError):
    """The request is impossible: a path that does not exist, more nodes than the allocation has."""
