"""`muster run` and `muster top` show the nodes on a real terminal and do not change the driver's output."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.running import MusterCommand, wait_for
from tests.screen import Cell, Screen, film

WIDTH = 100


class Terminal:
    """The other end of a pseudo-terminal."""

    def __init__(self, private: str | None = None) -> None:
        """`private` is a path that no picture shows."""
        self._private = private
        self.us, self.them = pty.openpty()
        self.screen, self.frames = Screen(WIDTH), list[tuple[float, list[list[Cell]]]]()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        fcntl.ioctl(self.them, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
        os.set_blocking(self.us, False)
        self.seen = b""

    def read(self) -> bytes:
        try:
            while data := os.read(self.us, 65536):
                self.seen += data
                text = self._decode(data)
                self.screen.feed(text.replace(self._private, "~/project") if self._private else text)
                self.frames.append((time.monotonic(), self.screen.copy()))
        except OSError:
            pass
        return self.seen

    def wait_for(self, text: str) -> None:
        wait_for(f"{text!r} on the terminal", lambda: text.encode() in self.read())

    def press(self, keys: str) -> None:
        os.write(self.us, keys.encode())


@contextmanager
def terminal(private: str | None = None) -> Iterator[Terminal]:
    found = Terminal(private)
    try:
        yield found
    finally:
        os.close(found.us)
        os.close(found.them)


def ended(process: subprocess.Popen[str], screen: Terminal) -> int:
    """A full terminal would hold the process up: read until it is over."""
    wait_for("its end", lambda: screen.read() is not None and process.poll() is not None)
    screen.read()
    return process.returncode


ENV = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


def test_run_shows_the_nodes_until_the_driver_speaks_and_then_nothing_but_lines(muster: MusterCommand) -> None:
    muster.env.update(ENV)
    with terminal() as screen:
        setup = "[ $MUSTER_RANK = 0 ] || until [ -e go ]; do sleep 0.1; done"
        args = muster.local_args("--setup", setup, "--", "bash", "-c", "printf 'one\\rtwo\\n'; echo three", nodes=3)
        process = muster.start(*args, stdin=screen.them, stdout=screen.them, stderr=screen.them)
        screen.wait_for("launching 2")
        screen.wait_for("waiting for nodes: node-[1-2]")
        (muster.cwd / "go").touch()
        assert ended(process, screen) == 0
        _, driver, after = screen.seen.partition(b"one\rtwo\r\nthree\r\n")
        assert driver, screen.seen
        assert b"\x1b[" not in after.replace(b"\x1b[0m", b""), after  # no cursor moved, nothing erased
        lines = screen.screen.lines()
        assert "two" in lines and "three" in lines and "succeeded" in "".join(lines)
        assert not [
            line for line in lines if "launching" in line or "waiting for nodes" in line
        ]  # nothing of the view is left


def test_a_film_of_a_run_is_made_for_the_documentation(
    muster: MusterCommand, images: Path, request: pytest.FixtureRequest
) -> None:
    nodes = 24 if request.config.getoption("--images") else 8
    muster.env.update(ENV)
    steps = "for n in 1 2 3; do echo step $n: loss 0.$((9 - n)); sleep 0.5; done"
    with terminal(str(muster.cwd)) as screen:
        setup = "sleep $((MUSTER_RANK / 8)).$((RANDOM % 10)); [ $MUSTER_RANK != 7 ] || sleep 4"
        args = muster.local_args("--runs-dir", "runs", "--setup", setup, "--", "bash", "-c", steps, nodes=nodes)
        process = muster.start(*args, stdin=screen.them, stdout=screen.them, stderr=screen.them)
        assert ended(process, screen) == 0
    frames = [screen.frames[0]]
    for when, rows in screen.frames[1:]:  # not more often than a person sees
        if when - frames[-1][0] >= 0.25:
            frames.append((when, rows))
    frames.append(screen.frames[-1])
    images.mkdir(parents=True, exist_ok=True)
    made = film(frames, WIDTH, "muster run")
    (images / "run.svg").write_text(made)
    assert "launching" in made and "step 3: loss 0.6" in made and str(muster.cwd) not in made


def test_the_driver_s_output_reaches_a_pipe_byte_by_byte_while_the_display_is_on_a_terminal(
    muster: MusterCommand,
) -> None:
    muster.env.update(ENV)
    with terminal() as screen:
        command = r"printf '\033[31mred\0\377'; seq 20000"
        process = muster.start(*muster.local_args("--", "bash", "-c", command), stderr=screen.them, text=False)
        out, _ = process.communicate(timeout=180)
        numbers = b"".join(b"%d\n" % n for n in range(1, 20001))
        assert out == b"\x1b[31mred\0\xff" + numbers


@contextmanager
def running(muster: MusterCommand, command: str, nodes: int = 2) -> Iterator[subprocess.Popen[str]]:
    """A run whose driver has begun; it is ended if the test has not."""
    args = muster.local_args("--stop-grace", "1s", "--", "bash", "-c", command, nodes=nodes)
    process = muster.start(*args)
    try:
        muster.wait_for_driver("working")
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=180)


def test_top_shows_a_live_run_and_q_leaves_it_as_it_was(muster: MusterCommand) -> None:
    muster.env.update(ENV)
    with running(muster, "echo working; sleep 1000", nodes=3), terminal() as screen:
        before = termios.tcgetattr(screen.them)
        process = muster.start("top", stdin=screen.them, stdout=screen.them, stderr=screen.them)
        screen.wait_for("driver 3")
        screen.wait_for("| working")
        screen.press("q")
        assert ended(process, screen) == 0
        assert termios.tcgetattr(screen.them) == before
        assert b"\x1b[?1049l" in screen.seen


def test_top_ends_with_the_run_and_without_a_terminal_prints_lines(muster: MusterCommand) -> None:
    with running(muster, "echo working; until [ -e go ]; do sleep 0.1; done"):
        watching = muster.start("top")
        assert watching.stdout is not None
        assert "running: 2 driver: the driver runs" in watching.stdout.readline()
        (muster.cwd / "go").touch()
        rest, err = watching.communicate(timeout=180)
    assert watching.returncode == 0, err
    assert "succeeded: 2 gone: the driver exited with 0" in rest and "\x1b" not in rest
