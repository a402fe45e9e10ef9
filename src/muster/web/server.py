"""The HTTP server of `muster ui`, on loopback, with one thread per connection."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from muster.web.handlers import Handlers
from muster.web.messages import HEADERS, Answer, Request

# Idle connections are closed after this time, because every user of the host can open them. A browser on a busy machine
# connects some time before it sends a request, and shows an error if the connection was closed.
IDLE_TIMEOUT_S = 15.0
MAX_CONNECTIONS = 128  # concurrent, each with a thread; further connections wait


class UiServer(ThreadingHTTPServer):
    """Listen on 127.0.0.1 only, on the given port or, for 0, on any free one."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, port: int, handlers: Handlers | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.handlers = handlers
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait for a slot, which idle connections soon free; a dropped request would leave a page incomplete."""
        if self._slots.acquire(timeout=2 * IDLE_TIMEOUT_S):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not report browsers that disconnect during an answer."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "muster", ""
    timeout = IDLE_TIMEOUT_S
    server: UiServer

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > 4096 or "Transfer-Encoding" in self.headers:
            self._send(Answer(413, b"Request too large."))
            return
        self.rfile.read(int(length))  # no handler uses a request's body
        assert self.server.handlers is not None
        headers = {name.title(): value for name, value in self.headers.items()}
        self._send(self.server.handlers.handle(Request(self.command, self.path, headers)))

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_HEAD = do_PATCH = _serve

    def _send(self, answer: Answer) -> None:
        """Send the answer and close the connection: idle open connections would use up the slots."""
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
        """Log nothing: URLs may contain a token."""
