"""The shared-filesystem side of a run: where things lie, and how they are published. Standard library only."""

from muster.board.append import LineFile
from muster.board.layout import AttemptPaths, RunPaths
from muster.board.publish import claim, read_json, read_record, write_atomic, write_json

__all__ = [
    "AttemptPaths",
    "LineFile",
    "RunPaths",
    "claim",
    "read_json",
    "read_record",
    "write_atomic",
    "write_json",
]
