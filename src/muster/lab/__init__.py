"""A real multi-node Slurm on one machine, for tests and experiments (see docs/how-to/slurm-lab.md)."""

from muster.lab.errors import LabError, LabUnavailable
from muster.lab.lab import Lab

__all__ = ["Lab", "LabError", "LabUnavailable"]
