"""The server of `muster ui` in this process, over runs of the test's own; a browser; requests by hand."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.web.auth import Auth
from muster.web.handlers import Handlers
from muster.web.run_cache import RunCache
from muster.web.server import UiServer


@dataclass
class Site:
    """A running server."""

    server: UiServer
    auth: Auth
    runs_dir: Path

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def link(self) -> str:
        return f"{self.origin}/enter?token={self.auth.new_link()}"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One request, with just these headers (underscores for dashes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=given)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def ask_headers(self, path: str, **headers: str) -> dict[str, str]:
        """Return the headers of the answer to a GET request; its body, which may have no end, is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            connection.request("GET", path, headers=headers)
            return dict(connection.getresponse().getheaders())
        finally:
            connection.close()

    def entered(self) -> dict[str, str]:
        """The cookie of a new session, as a header."""
        session = self.auth.enter(self.auth.new_link())
        assert session is not None
        return {"Cookie": f"{self.auth.cookie_name}={session.cookie}"}


@contextmanager
def served(runs_dir: Path) -> Iterator[Site]:
    """A server over the runs in this directory."""
    with UiServer(0) as server:
        auth = Auth(f"muster-{server.port}", "scrape-me")
        server.handlers = Handlers(auth, RunCache(runs_dir))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Site(server, auth, runs_dir)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with served(tmp_path / "muster-runs") as site:
        yield site
