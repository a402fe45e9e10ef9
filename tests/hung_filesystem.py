"""A filesystem that takes requests and never answers: what waits for it cannot be killed until it is released.

As with a server of a network filesystem that is gone. It is FUSE without a library: the kernel asks through a
descriptor of this process, so that everything is released at the latest when this process ends. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEADER, INIT = (
    struct.Struct("=4xIQ16xI"),
    26,
)  # kind and number of a request, its pid; the kind of the first
ANSWER = struct.Struct("=IiQ")  # length, error and the request's number
FACTS = struct.Struct("=IIIIHHIIHH32x")  # version 7.31, read-ahead, flags, limits: nothing beyond the least
PARALLEL = 1 << 18  # flag: requests for two files of a directory do not wait for each other
WAITS_IN = "request_wait_answer"  # the kernel's function, as the wait channel names it
MNT_DETACH = 2
LOOK_S = 0.05


class Hung:
    """A mounted one. `path` is in it: whatever opens it hangs."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "file")
        self._directory, self._fd = str(directory), os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        self._released, self._held = threading.Event(), set[int]()
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"hung", self._directory.encode(), b"fuse", ctypes.c_ulong(0), options.encode()):
            error = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(error, os.strerror(error), self._directory)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while not self._released.is_set():
            if poll.poll(LOOK_S * 1000):
                kind, number, pid = HEADER.unpack_from(os.read(self._fd, 1 << 20))
                self._held.add(pid)
                if kind == INIT:
                    facts = FACTS.pack(7, 31, 0, PARALLEL, 1, 1, 4096, 1, 1, 0)
                    os.write(self._fd, ANSWER.pack(ANSWER.size + len(facts), 0, number) + facts)

    def holds(self, pid: int) -> bool:
        """Whether the process's request was taken; until then a signal could still end it."""
        return pid in self._held

    def release(self) -> None:
        """Whatever waits gets an error, and whatever was killed ends."""
        if not self._released.is_set():
            self._released.set()
            self._reading.join()
            os.close(self._fd)
            ctypes.CDLL(None).umount2(self._directory.encode(), MNT_DETACH)


@contextmanager
def hung_filesystem(directory: Path) -> Iterator[Hung]:
    directory.mkdir()
    hung = Hung(directory)
    try:
        yield hung
    finally:
        hung.release()
