"""A real browser for tests: the distribution's Chromium, headless, spoken to over two pipes (no port, no driver)."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.running import DEADLINE_S, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ANSWER_S = 120.0  # its first answer waits for its start

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")


class Browser:
    """One Chromium. What it says of its pages (errors on the console, failed loads) is kept."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        shell = f'exec 3<&{to_read} 4>&{to_write}; exec "$@"'  # it reads commands from 3 and answers on 4
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                shell,
                "browser",
                CHROMIUM,
                "--headless=new",
                *sandbox,
                "--remote-debugging-pipe",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--force-color-profile=srgb",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(ANSWER_S)
            assert answer is not None, f"the browser did not answer {method} within {ANSWER_S:g} s"
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def listen(self) -> None:
        """Take what it has said without being asked."""
        while (event := self._next(0.05)) is not None:
            self.events.append(event)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._from, 1 << 20)
            assert data, "the browser is gone"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def page(self, width: int = 1280, height: int = 900) -> Page:
        """A new page in a context of its own: no cookie of another test's."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, target, width, height)

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self.ask("Browser.close")
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str, width: int, height: int) -> None:
        self._browser, self._session, self._target = browser, session, target
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)
        self.size(width, height)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **params)

    def size(self, width: int, height: int) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self) -> None:
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def colourless(self) -> None:
        self.ask("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")

    def go(self, url: str) -> None:
        """Open an address, and wait until just that is loaded: the page before may still be about to be."""
        self._browser.events.clear()
        loader = self.ask("Page.navigate", url=url)["loaderId"]
        wait_for(f"{url} to load", lambda: self._loaded(loader))

    def _loaded(self, loader: str) -> bool:
        self._browser.listen()
        told = [event["params"] for event in self._browser.events if event["method"] == "Page.lifecycleEvent"]
        return any((params["loaderId"], params["name"]) == (loader, "load") for params in told)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what it becomes."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def wait_for(self, script: str, what: str = "", deadline: float = DEADLINE_S) -> Any:
        """What there is instead is told: a page that failed to load looks like one that is slow."""
        try:
            return wait_for(what or script, lambda: self.run(script), deadline)
        except AssertionError as error:
            shown = f"{self.run('location.href')}: {self.text()[:500]!r}"
            raise AssertionError(f"{error}; {shown}; errors: {self.errors()}") from None

    def press(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, 0), **extra)

    def errors(self) -> list[str]:
        """Errors on the console, uncaught exceptions, and requests that failed."""
        self._browser.listen()
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
                found.append(str([arg.get("value") for arg in params["args"]]))
        return found

    def requests(self) -> list[str]:
        """The addresses that the page has asked for."""
        self._browser.listen()
        sent = [event for event in self._browser.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent if event.get("sessionId") == self._session]

    def screenshot(self, path: Path, whole: bool = False) -> None:
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._browser.ask("Target.closeTarget", targetId=self._target)


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def another_origin(contents: str) -> Iterator[str]:
    """A page of somebody else's on the same loopback: the browser sends it, and sends from it, the same cookies."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(contents.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()
