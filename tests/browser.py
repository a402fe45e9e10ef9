"""A real browser for tests: the distribution's Chromium, headless, driven by Playwright."""

from __future__ import annotations

import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import playwright.sync_api as driver
import pytest

from tests.running import DEADLINE_S, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ANSWER_MS = 120_000.0  # its first answer waits for its start, on a machine that may be busy

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
Answer = TypeVar("Answer")


class Browser:
    """One Chromium, used from one thread: Playwright keeps an event loop there, which tests with asyncio could not."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._playwright, self._chromium = self.do(self._start)

    def _start(self) -> tuple[driver.Playwright, driver.Browser]:
        environment: dict[str, str | float | bool] = {
            name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")
        }
        started = driver.sync_playwright().start()
        chromium = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--force-color-profile=srgb"],
            chromium_sandbox=os.geteuid() != 0,
            env=environment,
            timeout=ANSWER_MS,
        )
        return started, chromium

    def do(self, action: Callable[[], Answer]) -> Answer:
        """Return the result of an action of Playwright."""
        return self._thread.submit(action).result()

    def page(self, width: int = 1280, height: int = 900) -> Page:
        """Return a new page in a separate context, without cookies of other tests."""
        return Page(self, self.do(lambda: self._chromium.new_page(viewport={"width": width, "height": height})))

    def close(self) -> None:
        """End the browser and its driver."""
        self.do(self._chromium.close)
        self.do(self._playwright.stop)
        self._thread.shutdown()


class Page:
    """One tab, with the errors and requests of what it shows."""

    def __init__(self, browser: Browser, page: driver.Page) -> None:
        self._browser, self._page, self._do = browser, page, browser.do
        self._errors: list[str] = []
        self._requests: list[str] = []
        self._do(self._listen)

    def _listen(self) -> None:
        self._page.set_default_timeout(ANSWER_MS)
        self._page.on("pageerror", lambda error: self._errors.append(str(error)))
        self._page.on("console", lambda said: self._errors.append(said.text) if said.type == "error" else None)
        self._page.on("request", lambda request: self._requests.append(request.url))
        self._session = self._page.context.new_cdp_session(self._page)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a command of Chromium's protocol that Playwright does not have."""
        answer: dict[str, Any] = self._do(lambda: self._session.send(method, params))
        return answer

    def size(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self._do(lambda: self._page.set_viewport_size({"width": width, "height": height}))

    def dark(self) -> None:
        """Prefer dark colors."""
        self._do(lambda: self._page.emulate_media(color_scheme="dark"))

    def colourless(self) -> None:
        """Show the page as a person without color vision sees it."""
        self.ask("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")

    def go(self, url: str) -> None:
        """Open an address and wait until it is loaded. Errors and requests of earlier pages are forgotten."""
        self._errors.clear()
        self._requests.clear()
        self._do(lambda: self._page.goto(url))

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, and of a promise its result."""
        return self._do(lambda: self._page.evaluate(script))

    def text(self) -> str:
        """Return the text that is shown."""
        return str(self.run("document.body.innerText"))

    def wait_for(self, script: str, what: str = "", deadline: float = DEADLINE_S) -> Any:
        """Wait until an expression is true. If it is not, fail with what the page shows instead."""
        try:
            return wait_for(what or script, lambda: self._value(script), deadline)
        except AssertionError as error:
            shown = f"{self.run('location.href')}: {self.text()[:500]!r}"
            raise AssertionError(f"{error}; {shown}; errors: {self.errors()}") from None

    def _value(self, script: str) -> Any:
        """Return the value of an expression, or None while another page is being loaded."""
        try:
            return self.run(script)
        except driver.Error as error:
            if "navigation" in error.message:
                return None
            raise

    def press(self, key: str) -> None:
        """Press and release a key."""
        self._do(lambda: self._page.keyboard.press(key))

    def errors(self) -> list[str]:
        """Return errors on the console, uncaught exceptions, and requests that failed."""
        self.run("0")  # events before the answer are handled before it
        return self._errors

    def requests(self) -> list[str]:
        """Return the addresses that the page has requested."""
        self.run("0")
        return self._requests

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page."""
        self._do(lambda: self._page.screenshot(path=path, full_page=whole))

    def close(self) -> None:
        """Close the page and its context."""
        self._do(self._page.close)


@contextmanager
def opened() -> Iterator[Browser]:
    """Start a browser, and end it afterwards."""
    browser = Browser()
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def another_origin(contents: str) -> Iterator[str]:
    """Serve a foreign page on the same loopback: the browser sends it, and sends from it, the same cookies."""

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
