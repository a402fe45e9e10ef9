"""The API of SandboxFusion (/run_code), as its clients (verl among them) use it: pure translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.sandbox.api.nemo_skills import BadRequest, Bounds, typed, within
from muster.sandbox.engine.languages import IPYTHON, Languages, UnknownLanguage
from muster.sandbox.models import ProgramResult

DEFAULT_TIMEOUT_S = 10


@dataclass(frozen=True)
class RunCodeRequest:
    """A parsed request; timeouts in seconds."""

    code: str
    language: str
    compile_timeout: float
    run_timeout: float
    stdin: str
    memory_mb: int | None
    files: dict[str, str] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()


def parse(body: Any, languages: Languages, bounds: Bounds) -> RunCodeRequest:
    """Return the request; raise BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for name in ("code", "language"):
        if name not in body:
            raise BadRequest(f"{name} is required")
    try:
        language = languages.known(typed(body, "language", str, ""))
    except UnknownLanguage as error:
        raise BadRequest(str(error)) from None
    if language == IPYTHON:
        raise BadRequest("ipython needs a session: POST /execute with X-Session-ID")
    files = {name: data for name, data in typed(body, "files", dict, {}).items() if data is not None}
    if not all(isinstance(data, str) for data in files.values()):
        raise BadRequest("files must hold base64 text")
    memory = body.get("memory_limit_MB", -1)
    return RunCodeRequest(
        code=typed(body, "code", str, ""),
        language=language,
        compile_timeout=within(body, "compile_timeout", bounds.timeout_s, DEFAULT_TIMEOUT_S),
        run_timeout=within(body, "run_timeout", bounds.timeout_s, DEFAULT_TIMEOUT_S),
        stdin=body.get("stdin") or "",
        memory_mb=int(within(body, "memory_limit_MB", bounds.memory_mb, -1)) if memory not in (None, -1) else None,
        files=files,
        fetch=tuple(typed(body, "fetch_files", list, [])),
    )


def answer(ends: Sequence[ProgramResult], compiled: bool, limit: int, files: dict[str, str]) -> dict[str, Any]:
    """Return the response; `ends` are the results of the steps, the compiler's first if `compiled`."""
    results = [_command(ended, limit) for ended in ends]
    compile_result = results[0] if compiled else None
    run_result = results[-1] if not compiled or len(results) > 1 else None
    broken = next((ended for ended in ends if ended.reason in ("lost", "stopped")), None)
    status = "SandboxError" if broken else "Success" if all(ended.succeeded for ended in ends) else "Failed"
    return {
        "status": status,
        "message": broken.message if broken else "",
        "compile_result": compile_result,
        "run_result": run_result,
        "executor_pod_name": None,
        "files": files,
    }


def refusal(reason: str) -> dict[str, Any]:
    """Return the response to a request of which nothing was run."""
    return {
        "status": "SandboxError",
        "message": reason,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }


def _command(ended: ProgramResult, limit: int) -> dict[str, Any]:
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
