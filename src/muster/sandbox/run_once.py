"""Run one program in a sandbox that is made for it (`muster sandbox exec`)."""

from __future__ import annotations

from muster.exit_codes import BY_SIGNAL, TIMED_OUT
from muster.sandbox.engine.admission_queue import PROGRAM
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.languages import IPYTHON, PYTHON
from muster.sandbox.models import Program
from muster.sandbox.settings import SandboxSettings


async def run_once(
    settings: SandboxSettings, code: str, language: str, timeout: float, stdin: bytes
) -> tuple[bytes, bytes, int]:
    """Return stdout, stderr (followed by the reason if a limit ended the program) and an exit code as of a shell."""
    engine = Engine(settings)
    name = engine.languages.known(language)
    steps = engine.languages.steps(PYTHON if name == IPYTHON else name, code, stdin, (timeout, timeout))
    await engine.open()
    try:
        ended = (await engine.run(Program(steps, settings.max_output, name), PROGRAM))[-1]
    finally:
        await engine.close()
    message = f"it was ended after {timeout:g} s" if ended.reason == "timeout" else ended.message
    appended = b"" if ended.reason is None else f"muster sandbox: {message}\n".encode()
    if ended.reason == "timeout":
        exit_code = TIMED_OUT
    else:
        exit_code = BY_SIGNAL + ended.signal if ended.signal is not None else ended.exit_code or 0
    return ended.stdout.data, ended.stderr.data + appended, exit_code
