"""Errors of describing, preparing, submitting and ending jobs; each line of a message names the remedy."""

from __future__ import annotations

from collections.abc import Sequence


class BackendError(Exception):
    """The job cannot be prepared, submitted or ended here."""


class SubmissionRefused(BackendError):
    """Slurm refused the submission: there is no job."""


class Mistake(BackendError):
    """The request is impossible: a path that does not exist, more nodes than the allocation has."""


class SpecError(ValueError):
    """Raised for an invalid job. The message has one line per problem and can be shown to users unchanged."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(on_one_line(problem) for problem in problems)
        super().__init__("\n".join(self.problems))


class MusterWarning(UserWarning):
    """A remark that commands print as one line."""


class SettingsWarning(MusterWarning):
    """A setting that probably has a mistake."""


def on_one_line(text: str) -> str:
    """Return the text with control characters escaped: a problem may quote a key or a path with a newline."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
