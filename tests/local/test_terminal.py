"""`muster run` and `muster top` on a real terminal: they show the nodes, and leave the driver's output alone."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from tests.running import MusterCommand, wait_for


class Terminal:
    """The other end of a pseudo-terminal."""

    def __init__(self) -> None:
        self.us, self.them = pty.openpty()
        fcntl.ioctl(self.them, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        os.set_blocking(self.us, False)
        self.seen = b""

    def read(self) -> bytes:
        try:
            while data := os.read(self.us, 65536):
                self.seen += data
        except OSError:
            pass
        return self.seen

    def wait_for(self, text: str) -> None:
        wait_for(f"{text!r} on the terminal", lambda: text.encode() in self.read())

    def press(self, keys: str) -> None:
        os.write(self.us, keys.encode())


@contextmanager
def terminal() -> Iterator[Terminal]:
    found = Terminal()
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
        screen.wait_for("nodes are awaited: node-[1-2]")
        (muster.cwd / "go").touch()
        assert ended(process, screen) == 0
        _, driver, after = screen.seen.partition(b"one\rtwo\r\nthree\r\n")
        assert driver, screen.seen
        assert b"\x1b[" not in after.replace(b"\x1b[0m", b""), after  # no cursor moved, nothing erased
        assert b"succeeded" in after


def test_the_driver_s_output_reaches_a_pipe_byte_by_byte_while_the_display_is_on_a_terminal(
    muster: MusterCommand,
) -> None:
    muster.env.update(ENV)
    with terminal() as screen:
        command = r"printf '\033[31mred\0\377'; seq 20000"
        process = muster.start(*muster.local_args("--", "bash", "-c", command), stderr=screen.them, text=False)
        out, _ = process.communicate(timeout=60)
        numbers = b"".join(b"%d\n" % n for n in range(1, 20001))
        assert out == b"\x1b[31mred\0\xff" + numbers


def test_top_shows_a_live_run_and_q_leaves_it_as_it_was(muster: MusterCommand) -> None:
    muster.env.update(ENV)
    args = muster.local_args("--stop-grace", "1s", "--", "bash", "-c", "echo working; sleep 1000", nodes=3)
    run = muster.start(*args)
    muster.wait_for_driver("working")
    with terminal() as screen:
        before = termios.tcgetattr(screen.them)
        process = muster.start("top", stdin=screen.them, stdout=screen.them, stderr=screen.them)
        screen.wait_for("driver 3")
        screen.wait_for("| working")
        screen.press("q")
        assert ended(process, screen) == 0
        assert termios.tcgetattr(screen.them) == before
        assert b"\x1b[?1049l" in screen.seen
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)


def test_top_ends_with_the_run_and_without_a_terminal_prints_lines(muster: MusterCommand) -> None:
    run = muster.start(*muster.local_args("--", "bash", "-c", "echo working; until [ -e go ]; do sleep 0.1; done"))
    muster.wait_for_driver("working")
    watching = muster.start("top")
    assert watching.stdout is not None
    assert "running: 2 driver: the driver runs" in watching.stdout.readline()
    (muster.cwd / "go").touch()
    rest, err = watching.communicate(timeout=60)
    run.communicate(timeout=60)
    assert watching.returncode == 0, err
    assert "succeeded: 2 gone: the driver exited with 0" in rest and "\x1b" not in rest
