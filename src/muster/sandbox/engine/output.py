"""What a program printed: bounded while it runs, whatever it prints; cut exactly when it is told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

CHUNK = 1 << 16
CUT = "<output cut>"
LONGEST_CHARACTER = 4  # bytes of UTF-8
DRAIN_READS = 64  # of one stream, at the end of a cell: somebody may go on writing for ever
_ANSI = re.compile(r"\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")
_PROMPT = re.compile(r"^Out\[\d+\]:\s*")
_PLACE = re.compile(r"^\s*(?:File <ipython-|(?:File |Cell )In\s*\[\d+\])")


@dataclass(frozen=True)
class Captured:
    """The first bytes of a stream, and whether there were more."""

    data: bytes = b""
    more: bool = False

    def text(self, limit: int, tidy: Callable[[str], str] | None = None) -> str:
        """At most `limit` characters, and a mark if there were more. `tidy` works on the whole before the cut."""
        text = self.data.decode("utf-8", "replace")
        if self.more and text.endswith("\ufffd"):
            text = text[:-1]  # the middle of a character, not one
        if tidy is not None:
            text = tidy(text)
        return text[:limit] + CUT if len(text) > limit or self.more else text


class Stream:
    """The reading end of a pipe that a program writes to; keeps the first bytes and forgets the rest."""

    def __init__(self) -> None:
        self.fd, self.given = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self._parts: list[bytes] = []
        self._room = 0
        self._more = False
        self.wanted = self.ended = False

    def begin(self, limit: int) -> None:
        """Keep up to this many characters from now on; what was printed before belongs to what comes now."""
        self._room = LONGEST_CHARACTER * limit + CHUNK
        self.wanted = True

    def read(self) -> bool:
        """Take what is there, at most one chunk; False when there was nothing."""
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
        """All that has been written by now."""
        for _ in range(DRAIN_READS):
            if not self.read():
                break
        captured = Captured(b"".join(self._parts), self._more)
        self._parts, self._more, self._room, self.wanted = [], False, 0, False
        return captured

    def give_away(self) -> None:
        os.close(self.given)

    def close(self) -> None:
        os.close(self.fd)


def plain(text: str) -> str:
    """IPython's output without colours, prompts, places in cells and blank lines at its beginning."""
    lines = [_PROMPT.sub("", line) for line in _ANSI.sub("", text).split("\n") if not _PLACE.match(line)]
    while lines and lines[0] == "":
        lines.pop(0)
    text = "\n".join(lines).rstrip()
    return text + "\n" if text else ""
