"""What can go wrong with a lab, and the exit code each kind has on the command line."""


class LabError(Exception):
    """The lab could not do what was asked; the message says why and what to do."""

    exit_code = 1


class LabUnavailable(LabError):
    """This machine cannot run a lab as asked (not root, a package or a kernel feature missing)."""

    exit_code = 2
