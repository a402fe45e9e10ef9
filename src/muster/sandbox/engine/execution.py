"""The engine's side of one execution: the socket for its job and the pipes for its output."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import Any, Callable

from muster.sandbox.jail import wire
from muster.sandbox.output import Stream


class Execution:
    """An execution. It is created before its process, and read from once its job has been sent."""

    def __init__(self) -> None:
        """Raises OSError if there are no more open files, and then leaves none open."""
        with contextlib.ExitStack() as opened:
            self.socket, self._child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.callback(self.socket.close)
            opened.callback(self._child_socket.close)
            self.stdout = Stream()
            opened.callback(self.stdout.close)
            opened.callback(self.stdout.close_child_end)
            self.stderr = Stream()
            opened.pop_all()
        self.socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._read: set[Stream] = set()
        self._on_unsent: Callable[[], None] = lambda: None
        self._is_unread = False  # the last job or cell could not be sent, or was not received

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """The descriptors that the process inherits; `close_child_ends` closes them here."""
        return self._child_socket.fileno(), self.stdout.child_fd, self.stderr.child_fd

    def close_child_ends(self) -> None:
        self._child_socket.close()
        self.stdout.close_child_end()
        self.stderr.close_child_end()

    def send(self, message: dict[str, Any], stdin: bytes = b"") -> None:
        """Send a job or a cell; long ones, and input, as a memory file. A dead process is detected elsewhere."""
        try:
            wire.send_job(self.socket, message, stdin)
        except OSError:  # the process is gone, or there are no more open files or memory
            self._is_unread = True
            self._on_unsent()

    def on_unsent(self, callback: Callable[[], None]) -> None:
        """Call back if a job or cell could not be sent: then the other end waits for it in vain."""
        self._on_unsent = callback

    @property
    def was_not_received(self) -> bool:
        """Whether the last job or cell certainly was not started: the other end is closed and the message unread.

        The kernel then reports the connection as reset; if everything was read, it is only closed.
        """
        if self.socket.fileno() != -1:
            error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # reading it clears it
            self._is_unread = self._is_unread or error == errno.ECONNRESET
        return self._is_unread

    def begin(self, limit: int) -> None:
        """Start to read its output."""
        self.stdout.begin(limit)
        self.stderr.begin(limit)
        for stream in (self.stdout, self.stderr):
            if stream not in self._read:
                self._read.add(stream)
                self._loop.add_reader(stream.fd, self._on_output, stream)

    def _on_output(self, stream: Stream) -> None:
        """Read the output. Between two cells it stays in the pipe, so that a process that keeps writing blocks."""
        if stream.wanted:
            stream.read()
        if stream.ended or not stream.wanted:
            self._read.discard(stream)
            self._loop.remove_reader(stream.fd)

    def on_message(self, callback: Callable[[dict[str, Any] | None], None]) -> None:
        """Call back with each message of a session, and with None at its end."""
        self._loop.add_reader(self.socket, self._on_packet, callback)

    def _on_packet(self, callback: Callable[[dict[str, Any] | None], None]) -> None:
        try:
            data = self.socket.recv(wire.PACKET)
            message = wire.decoded(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError) as error:
            message = None  # untrusted code has the other end
            self._is_unread = self._is_unread or isinstance(error, ConnectionResetError)
        if message is None:
            self._loop.remove_reader(self.socket)
        callback(message if isinstance(message, dict) else None)

    def close(self) -> None:
        self._loop.remove_reader(self.socket)
        self.socket.close()
        for stream in (self.stdout, self.stderr):
            self._loop.remove_reader(stream.fd)
            stream.close()
