"""The server's side of one execution: the socket for its job, the pipes for its output."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, Callable

from muster.sandbox.engine.output import Stream
from muster.sandbox.jail import wire


class Execution:
    """Made before its process is; read from when its job has been handed over."""

    def __init__(self) -> None:
        self.socket, self._given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.stdout, self.stderr = Stream(), Stream()
        self._loop = asyncio.get_running_loop()
        self._read: set[Stream] = set()
        self._is_unread = False  # what was handed over last could not be sent, or was never received

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """What the process gets; closed here by `give_away`."""
        return self._given.fileno(), self.stdout.given, self.stderr.given

    def give_away(self) -> None:
        self._given.close()
        self.stdout.give_away()
        self.stderr.give_away()

    def hand(self, message: dict[str, Any], stdin: bytes = b"") -> None:
        """Send a job or a cell; long ones, and input, as a sealed file. A process that is gone is noticed elsewhere."""
        try:
            wire.send_job(self.socket, message, stdin)
        except ConnectionError:
            self._is_unread = True

    @property
    def was_not_received(self) -> bool:
        """Proof that what was handed over last was not begun: all who held the other end are gone, and it is unread.

        The kernel then reports the connection as reset; one that was read to its end is only closed.
        """
        if self.socket.fileno() != -1:
            error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # which forgets it
            self._is_unread = self._is_unread or error == errno.ECONNRESET
        return self._is_unread

    def begin(self, limit: int) -> None:
        """Read its output from now on."""
        self.stdout.begin(limit)
        self.stderr.begin(limit)
        for stream in (self.stdout, self.stderr):
            if stream not in self._read:
                self._read.add(stream)
                self._loop.add_reader(stream.fd, self._on_output, stream)

    def _on_output(self, stream: Stream) -> None:
        """What comes while nobody asked for it (between two cells) stays in the pipe: whoever writes on must wait."""
        if stream.wanted:
            stream.read()
        if stream.ended or not stream.wanted:
            self._read.discard(stream)
            self._loop.remove_reader(stream.fd)

    def on_message(self, then: Callable[[dict[str, Any] | None], None]) -> None:
        """Of a session: what it says; None at its end."""
        self._loop.add_reader(self.socket, self._on_packet, then)

    def _on_packet(self, then: Callable[[dict[str, Any] | None], None]) -> None:
        try:
            data = self.socket.recv(wire.PACKET)
            message = wire.decoded(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError) as error:
            message = None  # foreign code has the other end: what it says is not to be relied on
            self._is_unread = self._is_unread or isinstance(error, ConnectionResetError)
        if message is None:
            self._loop.remove_reader(self.socket)
        then(message if isinstance(message, dict) else None)

    def close(self) -> None:
        self._loop.remove_reader(self.socket)
        self.socket.close()
        for stream in (self.stdout, self.stderr):
            self._loop.remove_reader(stream.fd)
            stream.close()
