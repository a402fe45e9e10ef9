"""The output of a program: bounded while the program runs, and cut to the exact limit when it is reported."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

CHUNK = 1 << 16  # bytes
CUT = "<output cut>"
MAX_CHARACTER_BYTES = 4  # of UTF-8
MAX_DRAIN_READS = 64  # of one stream, at the end of a cell: a process may keep writing forever
SLICE = 1 << 16  # bytes or characters that are converted in one step: other threads run between two steps
LONG_LINE = 1 << 20  # characters of a line after which it is not collected any further
MAX_ESCAPE = 64  # characters of an escape sequence that is found across the parts of a long line
_ANSI = re.compile(r"\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")
_PROMPT = re.compile(r"^Out\[\d+\]:[^\S\n]*", re.MULTILINE)
_LOCATION = re.compile(r"^[^\S\n]*(?:File <ipython-|(?:File |Cell )In[^\S\n]*\[\d+\])[^\n]*(?:\n|\Z)", re.MULTILINE)
Cleanup = Callable[[Iterable[str]], Iterator[str]]


@dataclass(frozen=True)
class Captured:
    """The first bytes of a stream, and whether there were more."""

    data: bytes = b""
    more: bool = False

    def text(self, limit: int, tidy: Cleanup | None = None) -> str:
        """Return at most `limit` characters, and CUT if there were more. `tidy` is applied before the text is cut.

        The work is linear in what is returned or removed, and done in small steps.
        """
        pieces = self._decoded() if tidy is None else tidy(self._decoded())
        parts, length = [], 0
        for piece in pieces:
            parts.append(piece)
            length += len(piece)
            if length > limit:
                break
        text = "".join(parts)
        return text[:limit] + CUT if length > limit or self.more else text

    def _decoded(self) -> Iterator[str]:
        """Yield the text in parts; an incomplete character at the end is left out if there was more."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for start in range(0, len(self.data), SLICE):
            is_last = start + SLICE >= len(self.data)
            yield decoder.decode(self.data[start : start + SLICE], is_last and not self.more)


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


def strip_ipython_formatting(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text without colors, prompts, cell locations, leading blank lines and white space at its end."""
    has_begun = has_text = False
    held: list[str] = []  # white space that may be the last of the text
    for block in _blocks(pieces):
        block = _PROMPT.sub("", _LOCATION.sub("", _ANSI.sub("", block)))
        if not has_begun:
            block = block.lstrip("\n")
            has_begun = bool(block)
        kept = block.rstrip()
        if kept:
            has_text = True
            yield "".join([*held, kept])
            held = []
        held.append(block[len(kept) :])
    if has_text:
        yield "\n"


def _blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text in blocks of whole lines; a line above LONG_LINE in parts that do not divide escape sequences."""
    collected: list[str] = []
    length = 0
    for piece in pieces:
        end = piece.rfind("\n") + 1
        if end:
            yield "".join([*collected, piece[:end]])
            collected, length = [], 0
        collected.append(piece[end:])
        length += len(piece) - end
        if length > LONG_LINE:
            line = "".join(collected)
            escape = line.rfind("\x1b", len(line) - MAX_ESCAPE)
            cut = len(line) if escape == -1 else escape
            yield line[:cut]
            collected, length = [line[cut:]], len(line) - cut
    yield "".join(collected)
