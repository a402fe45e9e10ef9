"""An endpoint for clients that answers requests as a test wants, and notes them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from muster.sandbox.http import codec
from muster.sandbox.http.codec import HttpResponse, RequestHead

COMPLETED = {"process_status": "completed", "stdout": "", "stderr": ""}
Respond = Callable[[RequestHead, Any], HttpResponse]


class Endpoint:
    """Serves each connection in a thread; `respond` returns the response to a request's head and JSON."""

    def __init__(self, respond: Respond = lambda head, body: HttpResponse(200, COMPLETED)) -> None:
        self._respond = respond
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.requests: list[tuple[RequestHead, Any]] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as file:
            while True:
                lines = []
                while (line := file.readline()) not in (b"\r\n", b""):
                    lines.append(line)
                if not lines:
                    return
                head, _ = codec.parse_request_head(b"".join(lines)[:-2])
                body = file.read(int(head.headers["content-length"]))
                self.requests.append((head, json.loads(body) if body else None))
                connection.sendall(codec.response_bytes(self._respond(*self.requests[-1]), False))

    @property
    def codes(self) -> list[str]:
        """The code of each program or cell."""
        return [body["generated_code"] for _, body in self.requests if body]

    def close(self) -> None:
        for sock in (self._server, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(120)
        self._server.close()
