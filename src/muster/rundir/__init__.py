"""The run directory on the shared filesystem: paths, atomic publishing, readers. Standard library only."""

from muster.rundir.atomic import (
    is_listed,
    read_json,
    read_record,
    write_atomic,
    write_json,
    written_at,
)
from muster.rundir.exclusive import create_exclusive, release_exclusive
from muster.rundir.line_file import LineFile
from muster.rundir.paths import AttemptPaths, RunPaths
from muster.rundir.private_files import PRIVATE_FILE_MODE, make_private_dirs, private_opener

__all__ = [
    "PRIVATE_FILE_MODE",
    "AttemptPaths",
    "LineFile",
    "RunPaths",
    "create_exclusive",
    "is_listed",
    "make_private_dirs",
    "private_opener",
    "read_json",
    "read_record",
    "release_exclusive",
    "write_atomic",
    "write_json",
    "written_at",
]
