"""A real sandbox server in a process of its own, and a plain HTTP client for it."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
NOBODY = 30_000 + os.getpid() % 30_000  # a user without privileges, and nobody else's: its processes are counted
START_S = 90.0


def end_with_us() -> None:
    """A test run that is killed leaves no server."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Answer(dict[str, Any]):
    """A JSON body, its HTTP status and headers beside."""

    status: int
    headers: dict[str, str]


class Served:
    """`python -m muster.sandbox` with these settings, as this user."""

    def __init__(
        self,
        settings: dict[str, Any],
        user: int | None = None,
        python: str = sys.executable,
        path: str = os.environ["PATH"],
    ) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="sandbox-test-"))
        os.chmod(self.place, 0o777)
        self.ready = self.place / "ready.json"
        settings = {
            "port": 0,
            "ready_file": str(self.ready),
            "python": python,
            "preload": [],
            "workers_min": 2,
            "workers_max": 4,
            "scratch_dir": str(self.place),
            **settings,
        }
        self.log = (self.place / "log").open("w+")
        environment = {"PYTHONPATH": str(SOURCE), "PATH": path, "SECRET_OF_SERVICE": "hunter2"}
        self.process = subprocess.Popen(
            [python, "-m", "muster.sandbox", "-"],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            cwd="/",
            preexec_fn=end_with_us,
            env=environment,
            text=True,
            **({} if user is None else {"user": user, "group": user, "extra_groups": []}),
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(settings))
        self.process.stdin.close()
        self.facts: dict[str, Any] = self._wait_until_ready()
        self.port: int = self.facts["port"]

    def _wait_until_ready(self) -> dict[str, Any]:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):
                return json.loads(self.ready.read_text())
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.stop()
        raise AssertionError(f"the sandbox did not start: {self.said()}")

    def said(self) -> str:
        return (self.place / "log").read_text() if self.place.exists() else self._last_words

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        try:
            code = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._last_words = self.said()
        self.log.close()
        return code

    def clean(self) -> None:
        self.stop()
        shutil.rmtree(self.place, ignore_errors=True)

    # -- asking -----------------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        patience_s: float = 90,
    ) -> Answer:
        connection = http.client.HTTPConnection(host, port or self.port, timeout=patience_s)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            kind = {} if data is None else {"Content-Type": "application/json"}
            connection.request(method, path, data, {**kind, **(headers or {})})
            response = connection.getresponse()
            text = response.read().decode()
            kind = response.headers.get("Content-Type", "")
            answer = Answer(json.loads(text) if kind == "application/json" else {"text": text})
            answer.status, answer.headers = response.status, dict(response.headers)
            return answer
        finally:
            connection.close()

    def execute(self, code: str, language: str = "python", timeout: float = 30, **more: Any) -> Answer:
        session = more.pop("session", None)
        headers = {"X-Session-ID": session} if session else {}
        headers.update(more.pop("headers", {}))
        patient = more.pop("patient", True)
        body = {"generated_code": code, "timeout": timeout, "language": language, **more}
        end = time.monotonic() + START_S
        while True:
            answer = self.ask("POST", "/execute", body, headers)
            if answer.status != 503 or not patient or time.monotonic() > end:
                return answer  # else nothing was run: the machine is drowned

    def out(self, code: str, language: str = "python", **more: Any) -> str:
        """Its stdout; that nothing went wrong is asserted."""
        answer = self.execute(code, language, max_output_characters=100_000, **more)
        assert answer["process_status"] == "completed" and not answer["stderr"], answer
        return str(answer["stdout"])

    def cell(self, code: str, session: str, timeout: float = 30, **more: Any) -> Answer:
        return self.execute(code, "ipython", timeout, session=session, **more)

    def new_session(self) -> str:
        return uuid.uuid4().hex


def a_python_for_anybody() -> str | None:
    """An interpreter that another user may run, and read the library of."""
    for python in (sys.executable, "/usr/bin/python3"):
        check = "import sys, json, ctypes, encodings.idna; sys.exit(sys.version_info < (3, 9))"
        if os.path.exists(python):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    [python, "-I", "-c", check], user=NOBODY, group=NOBODY, capture_output=True, cwd="/"
                )
                if done.returncode == 0:
                    return python
    return None


def survivors(mark: str) -> list[str]:
    """Processes anywhere on the machine whose first argument is the mark."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if file.read().startswith(mark.encode() + b"\0"):
                        found.append(entry)
            except OSError:
                continue
    return found


def url(served: Served) -> str:
    """Return the endpoint for clients of this machine."""
    return f"http://127.0.0.1:{served.port}"
