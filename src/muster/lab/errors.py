"""Errors of a lab, with their exit codes on the command line."""


class LabError(Exception):
    """A request to the lab failed; the message contains the reason and the remedy."""

    exit_code = 1


class LabUnavailable(LabError):
    """This machine cannot run such a lab (not root, a package or a kernel feature missing)."""

    exit_code = 2
