"""The API of SandboxFusion (/run_code, /run_jupyter), as its clients (verl among them) use it: pure translation.

Limits above this server's are reduced, and the response's `message` says so.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.sandbox.api.nemo_skills import BadRequest, Bounds, typed
from muster.sandbox.engine.languages import IPYTHON, Languages, UnknownLanguage
from muster.sandbox.models import ProgramResult

DEFAULT_TIMEOUT_S = 10
DEFAULT_NOTEBOOK_TIMEOUT_S = 45
IGNORED_FILE = "IGNORE_THIS_FILE"  # its clients send names with it for files that shall not be written
KERNEL = "python3"
UNKNOWN_RESULTS = "the notebook ended before it reported its results, or these exceed the limit of output"


@dataclass(frozen=True)
class CommonFields:
    """The fields that both kinds of requests have; `notes` say which limits were reduced."""

    memory_mb: int | None = None
    files: dict[str, str] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return "; ".join(self.notes)


@dataclass(frozen=True)
class RunCodeRequest:
    """A parsed request to run a program; timeouts in seconds."""

    code: str
    language: str
    compile_timeout: float
    run_timeout: float
    stdin: bytes
    shared: CommonFields


@dataclass(frozen=True)
class NotebookRequest:
    """A parsed request to run cells; timeouts in seconds, 0 for a cell that has none."""

    cells: tuple[str, ...]
    cell_timeout: float
    total_timeout: float
    shared: CommonFields


def parse(body: Any, languages: Languages, bounds: Bounds) -> RunCodeRequest:
    """Return the request of /run_code; raise BadRequest."""
    body = _object(body, "code", "language")
    try:
        language = languages.known(typed(body, "language", str, ""))
    except UnknownLanguage as error:
        raise BadRequest(str(error)) from None
    if language == IPYTHON:
        raise BadRequest("ipython needs a session: POST /execute with X-Session-ID")
    notes: list[str] = []
    stdin = typed(body, "stdin", str, "") if body.get("stdin") is not None else ""
    return RunCodeRequest(
        code=typed(body, "code", str, ""),
        language=language,
        compile_timeout=_timeout(body, "compile_timeout", DEFAULT_TIMEOUT_S, bounds, notes),
        run_timeout=_timeout(body, "run_timeout", DEFAULT_TIMEOUT_S, bounds, notes),
        stdin=stdin.encode("utf-8", "surrogatepass"),
        shared=_shared(body, bounds, notes),
    )


def parse_notebook(body: Any, bounds: Bounds) -> NotebookRequest:
    """Return the request of /run_jupyter; raise BadRequest."""
    body = _object(body, "cells")
    cells = typed(body, "cells", list, [])
    if not all(isinstance(cell, str) for cell in cells):
        raise BadRequest("cells must be strings")
    if body.get("kernel", KERNEL) != KERNEL:
        raise BadRequest(f"kernel must be {KERNEL}")
    notes: list[str] = []
    has_cell_timeout = body.get("cell_timeout") not in (None, 0)
    return NotebookRequest(
        cells=tuple(cells),
        cell_timeout=_timeout(body, "cell_timeout", 0, bounds, notes) if has_cell_timeout else 0.0,
        total_timeout=_timeout(body, "total_timeout", DEFAULT_NOTEBOOK_TIMEOUT_S, bounds, notes),
        shared=_shared(body, bounds, notes),
    )


def _object(body: Any, *required: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for name in required:
        if name not in body:
            raise BadRequest(f"{name} is required")
    return body


def _shared(body: dict[str, Any], bounds: Bounds, notes: list[str]) -> CommonFields:
    memory = _number(body, "memory_limit_MB", -1) if body.get("memory_limit_MB") is not None else -1
    fetch = typed(body, "fetch_files", list, [])
    if not all(isinstance(name, str) for name in fetch):
        raise BadRequest("fetch_files must be strings")
    return CommonFields(
        memory_mb=int(_reduced("memory_limit_MB", max(1, memory), bounds.memory_mb, notes)) if memory > 0 else None,
        files=_files(body),
        fetch=tuple(fetch),
        notes=tuple(notes),
    )


def _files(body: dict[str, Any]) -> dict[str, str]:
    sent = typed(body, "files", dict, {})
    files = {name: data for name, data in sent.items() if data is not None and IGNORED_FILE not in name}
    for name, data in files.items():
        try:
            base64.b64decode(data)
        except (TypeError, ValueError, binascii.Error):
            raise BadRequest(f"files must hold base64 text: {name} does not") from None
    return files


def _timeout(body: dict[str, Any], name: str, default: float, bounds: Bounds, notes: list[str]) -> float:
    value = _number(body, name, default)
    if value <= 0:
        raise BadRequest(f"{name} must be a number greater than 0")
    return _reduced(name, value, bounds.timeout_s, notes)


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    except OverflowError:
        number = math.inf
    if isinstance(value, (bool, str)) or math.isnan(number):
        raise BadRequest(f"{name} must be a number")
    return number


def _reduced(name: str, value: float, limit: float, notes: list[str]) -> float:
    """Return the value, at most `limit`; a reduction is noted."""
    if value > limit:
        notes.append(f"{name} was reduced from {value:g} to {limit:g}, the limit of this server")
    return min(value, limit)


# -- responses --------------------------------------------------------------------------------------------------------


def answer(
    ends: Sequence[ProgramResult], compiled: bool, limit: int, files: dict[str, str], message: str = ""
) -> dict[str, Any]:
    """Return the response; `ends` are the results of the steps, the compiler's first if `compiled`."""
    results = [command_result(ended, limit) for ended in ends]
    broken = next((ended for ended in ends if ended.reason in ("lost", "stopped")), None)
    status = "SandboxError" if broken else "Success" if all(ended.succeeded for ended in ends) else "Failed"
    return {
        "status": status,
        "message": broken.message if broken else message,
        "compile_result": results[0] if compiled else None,
        "run_result": results[-1] if not compiled or len(results) > 1 else None,
        "executor_pod_name": None,
        "files": files,
    }


def notebook_answer(ended: ProgramResult, files: dict[str, str], message: str) -> dict[str, Any]:
    """Return the response to a notebook, whose results are its standard output."""
    driver = {**command_result(ended, 0), "stdout": ""}
    try:
        cells = json.loads(ended.stdout.data) if ended.succeeded and not ended.stdout.more else None
    except ValueError:
        cells = None
    status = "SandboxError" if ended.reason in ("lost", "stopped") else "Success" if cells is not None else "Failed"
    if cells is None:
        message = ended.message if ended.reason is not None else UNKNOWN_RESULTS
    body = {"status": status, "message": message, "driver": driver, "executor_pod_name": None}
    return {**body, "cells": cells or [], "files": files}


def refusal(reason: str) -> dict[str, Any]:
    """Return the response to a request of which nothing was run, with the keys of every endpoint's response."""
    return {
        "status": "SandboxError",
        "message": reason,
        "detail": reason,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }


def fetched(ended: ProgramResult) -> dict[str, str]:
    """Return the files, in base64, that the last step of a program printed."""
    try:
        found: dict[str, str] = json.loads(ended.stdout.data)
        return found
    except ValueError:
        return {}


def command_result(ended: ProgramResult, limit: int) -> dict[str, Any]:
    """Return the result of one command."""
    status = "TimeLimitExceeded" if ended.reason == "timeout" else "Finished"
    if ended.reason in ("lost", "stopped"):
        status = "Error"
    code = ended.exit_code if ended.signal is None else -ended.signal
    stderr = ended.stderr.text(limit)
    if ended.reason not in (None, "timeout"):
        stderr += f"Execution ended: {ended.message}\n"
    return {
        "status": status,
        "execution_time": round(ended.usage.wall_s, 6),
        "return_code": None if ended.reason == "timeout" else code,
        "stdout": ended.stdout.text(limit),
        "stderr": stderr,
    }
