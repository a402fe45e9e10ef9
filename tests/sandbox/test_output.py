"""The output of programs: bounded, cut at characters, and without the formatting of IPython."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pytest

from muster.sandbox import output
from muster.sandbox.output import Captured, Stream, strip_ipython_formatting


@pytest.mark.parametrize(
    ("data", "more", "limit", "text"),
    [
        (b"abc", False, 3, "abc"),
        (b"abcd", False, 3, "abc<output cut>"),
        ("äöü".encode(), False, 2, "äö<output cut>"),
        (b"abc", True, 10, "abc<output cut>"),
        ("ab€".encode()[:-1], True, 10, "ab<output cut>"),  # in the middle of a character
        (b"", False, 5, ""),
    ],
)
def test_output_is_cut_at_characters(data: bytes, more: bool, limit: int, text: str) -> None:
    assert Captured(data, more).text(limit) == text


def test_a_stream_keeps_what_was_asked_for_and_forgets_the_rest() -> None:
    stream = Stream()
    stream.begin(10)
    for _ in range(40):
        os.write(stream.child_fd, b"x" * 10_000)
        stream.read()
    captured = stream.finish()
    assert captured.more and len(captured.data) <= 4 * 10 + (1 << 16)
    assert captured.text(10) == "x" * 10 + "<output cut>"
    stream.begin(10)  # a session's next cell begins anew
    os.write(stream.child_fd, b"y")
    assert stream.finish() == Captured(b"y", False)
    stream.close_child_end()
    stream.close()


@pytest.mark.parametrize(
    ("raw", "tidy"),
    [
        ("\n\nOut[3]: 5\n\n", "5\n"),
        ("\x1b[31mred\x1b[0m\n", "red\n"),
        ("Traceback\n  File <ipython-input-1-ab>:1\n    1 / 0\nZ\n", "Traceback\n    1 / 0\nZ\n"),
        ("  Cell In[1], line 1\n    x = (\n", "    x = (\n"),
        ("", ""),
        ("  \n", ""),
    ],
)
def test_ipython_s_output_is_made_plain(raw: str, tidy: str) -> None:
    assert "".join(strip_ipython_formatting([raw])) == tidy
    assert "".join(strip_ipython_formatting([*raw])) == tidy  # wherever its parts end


@pytest.mark.parametrize("data", [b"\n" * 2_000_000, b"x" + b" \n" * 2_000_000, b"\0" * 4_000_000], ids=["n", "s", "0"])
def test_long_output_is_converted_in_small_steps(data: bytes) -> None:
    steps = []

    def counted(pieces: Iterable[str]) -> Iterator[str]:
        for piece in strip_ipython_formatting(pieces):
            steps.append(len(piece))
            yield piece

    text = Captured(data).text(100, counted)
    assert text in ("", "x\n", "\0" * 100 + "<output cut>")
    assert sum(steps) <= output.LONG_LINE + 2 * output.SLICE


def test_a_line_without_end_is_cut_between_escape_sequences() -> None:
    line = ("\x1b[31m" + "x" * 70) * 40_000
    assert Captured(line.encode()).text(5_000_000, strip_ipython_formatting) == "x" * 70 * 40_000 + "\n"


def test_a_stream_tells_its_end_and_keeps_what_came_before_it() -> None:
    stream = Stream()
    assert stream.read() is False and not stream.ended  # nothing was written yet
    os.write(stream.child_fd, b"before")
    stream.begin(10)
    stream.close_child_end()
    assert stream.read() is True and stream.read() is False and stream.ended
    assert stream.finish() == Captured(b"before", False)
    assert not stream.wanted
    stream.close()


def test_at_the_end_only_so_much_is_read_of_a_process_that_keeps_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_DRAIN_READS", 2)
    monkeypatch.setattr(output, "CHUNK", 4)
    stream = Stream()
    stream.begin(100)
    os.write(stream.child_fd, b"x" * 100)
    assert stream.finish() == Captured(b"x" * 8, False)
    stream.close_child_end()
    stream.close()


def test_text_is_tidied_before_it_is_cut() -> None:
    assert Captured(b"\x1b[31mred\x1b[0m line\n").text(3, strip_ipython_formatting) == "red<output cut>"
