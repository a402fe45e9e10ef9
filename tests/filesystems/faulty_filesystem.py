"""A mounted filesystem with faults, as tests use it; `fuse_server.py` serves it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("fuse_server.py")
MNT_DETACH = 2


def why_no_fuse() -> str | None:
    """Why no filesystem can be mounted here; None if one can."""
    if os.geteuid() != 0:
        return "mounting a filesystem needs root"
    return None if os.path.exists("/dev/fuse") else "this machine has no /dev/fuse"


@dataclass(frozen=True)
class Operation:
    """One call that reached the filesystem. `path`: below the mounted directory; `at`: on the monotonic clock."""

    name: str
    path: str
    at: float
    program: str  # the command line of the process that called, after its rank
    thread: int  # the id of the thread that called; that of a process's first thread is the process's
    process: int


class FaultyFilesystem:
    """Passes everything through to `behind` until a fault is injected. `path`: where it is mounted."""

    def __init__(self, directory: Path, cache_seconds: int = 0) -> None:
        self.behind, self.path = directory / "behind", directory / "mounted"
        for each in (self.behind, self.path):
            each.mkdir(parents=True)
        argv = [sys.executable, "-I", "-S", str(SERVER), str(self.behind), str(self.path), str(cache_seconds)]
        self._server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "ready"

    def inject(self, kind: str, operations: str = ".*", path: str = ".*", **limits: Any) -> None:
        """Inject a fault: the fields of `fuse_server.Fault`."""
        self._do("fault", kind=kind, operations=operations, path=path, **limits)

    def clear(self) -> None:
        """End all faults: calls that hang are answered now."""
        self._do("clear")

    def hits(self) -> list[int]:
        """How often each fault struck."""
        hits: list[int] = self._do("hits")
        return hits

    def record(self) -> None:
        """Forget the operations so far and note all further ones."""
        self._do("record")

    def operations(self) -> list[Operation]:
        return [Operation(*fields) for fields in self._do("operations")]

    def close(self) -> None:
        """Answer whatever waits, and unmount."""
        assert self._server.stdin is not None and self._server.stdout is not None
        try:
            self.clear()
        finally:
            self._server.stdin.close()
            self._server.wait(60)
            self._server.stdout.close()
            ctypes.CDLL(None).umount2(os.fsencode(self.path), MNT_DETACH)

    def _do(self, do: str, **arguments: Any) -> Any:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the filesystem's server has ended"
        return json.loads(line)


@contextmanager
def faulty_filesystem(directory: Path, cache_seconds: int = 0) -> Iterator[FaultyFilesystem]:
    filesystem = FaultyFilesystem(directory, cache_seconds)
    try:
        yield filesystem
    finally:
        filesystem.close()
