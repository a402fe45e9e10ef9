"""The output of a program: bounded while the program runs, and cut to the exact limit when it is reported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

CHUNK = 1 << 16  # bytes
CUT = "<output cut>"
MAX_CHARACTER_BYTES = 4  # of UTF-8
MAX_DRAIN_READS = 64  # of one stream, at the end of a cell: a process may keep writing forever
_ANSI = re.compile(r"\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")
_PROMPT = re.compile(r"^Out\[\d+\]:\s*")
_LOCATION = re.compile(r"^\s*(?:File <ipython-|(?:File |Cell )In\s*\[\d+\])")


@dataclass(frozen=True)
class Captured:
    """The first bytes of a stream, and whether there were more."""

    data: bytes = b""
    more: bool = False

    def text(self, limit: int, tidy: Callable[[str], str] | None = None) -> str:
        """Return at most `limit` characters, and CUT if there were more. `tidy` is applied before the text is cut."""
        text = self.data.decode("utf-8", "replace")
        if self.more and text.endswith("\ufffd"):
            text = text[:-1]  # an incomplete character
        if tidy is not None:
            text = tidy(text)
        return text[:limit] + CUT if len(text) > limit or self.more else text


class Stream:
    """A pipe that a program writes to, with the first bytes it wrote; the rest is dropped."""

    def __init__(self) -> None:
        self.fd, self.child_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self._parts: list[bytes] = []
        self._room = 0
        self._more = False
        self.wanted = self.ended = False

    def begin(self, limit: int) -> None:
        """Keep up to this many characters from now on, including what is in the pipe already."""
        self._room = MAX_CHARACTER_BYTES * limit + CHUNK
        self.wanted = True

    def read(self) -> bool:
        """Read at most one chunk without blocking; return False if nothing was there."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.ended = True
            return False
        if len(data) > self._room:
            self._more = True
            data = data[: self._room]
        if data:
            self._parts.append(data)
            self._room -= len(data)
        return True

    def finish(self) -> Captured:
        """Return what has been written by now, and reset."""
        for _ in range(MAX_DRAIN_READS):
            if not self.read():
                break
        captured = Captured(b"".join(self._parts), self._more)
        self._parts, self._more, self._room, self.wanted = [], False, 0, False
        return captured

    def close_child_end(self) -> None:
        os.close(self.child_fd)

    def close(self) -> None:
        os.close(self.fd)


def strip_ipython_formatting(text: str) -> str:
    """Remove colors, prompts, cell locations and leading blank lines from IPython's output."""
    lines = [_PROMPT.sub("", line) for line in _ANSI.sub("", text).split("\n") if not _LOCATION.match(line)]
    while lines and lines[0] == "":
        lines.pop(0)
    text = "\n".join(lines).rstrip()
    return text + "\n" if text else ""
