"""The shared-filesystem side of a run: where things lie, and how they are published. Standard library only."""

from muster.rundir.atomic import create_exclusive, read_json, read_record, write_atomic, write_json
from muster.rundir.line_file import LineFile
from muster.rundir.paths import AttemptPaths, RunPaths

__all__ = [
    "AttemptPaths",
    "LineFile",
    "RunPaths",
    "create_exclusive",
    "read_json",
    "read_record",
    "write_atomic",
    "write_json",
]
