"""The server of `muster ui`: HTTP on loopback around `Answers`, a thread for each connection."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from muster.web.handlers import Handlers
from muster.web.messages import HEADERS, Answer, Request

# A connection that asks nothing for so long is closed: anybody on this host can open one. A browser on a busy machine
# connects some time before it asks, and shows an error where it finds the connection closed.
QUIET_S = 15.0
MOST_CONNECTIONS = 128  # at once, each with a thread; further ones wait their turn


class UiServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1 alone, on this port or on any that is free."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, port: int, handlers: Handlers | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.handlers = handlers
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Where there is no room, whoever comes waits: silent connections are soon gone. One dropped would be a page
        with a part missing."""
        if self._room.acquire(timeout=2 * QUIET_S):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is nothing to tell of."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "muster", ""
    timeout = QUIET_S
    server: UiServer

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > 4096 or "Transfer-Encoding" in self.headers:
            self._send(Answer(413, b"Too much."))
            return
        self.rfile.read(int(length))  # nothing that we are told is in a body
        assert self.server.handlers is not None
        headers = {name.title(): value for name, value in self.headers.items()}
        self._send(self.server.handlers.to(Request(self.command, self.path, headers)))

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_HEAD = do_PATCH = _serve

    def _send(self, answer: Answer) -> None:
        """One answer for each connection: kept open, they would take each other's room, and loopback is quick."""
        self.close_connection = True
        self.send_response(answer.status)
        for name, value in {**HEADERS, "Content-Type": answer.kind, **answer.headers, "Connection": "close"}.items():
            self.send_header(name, value)
        if isinstance(answer.body, bytes):
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else answer.body)
            return
        if answer.length is not None:
            self.send_header("Content-Length", str(answer.length))
        self.end_headers()
        with contextlib.closing(answer.body) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it, and addresses may hold a token."""
