"""One program in a sandbox of its own: what `muster sandbox exec` does."""

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
    """Its stdout, its stderr (with the reason, if a limit ended it) and an exit code as a shell's."""
    box = Engine(settings)
    name = box.languages.known(language)
    steps = box.languages.steps(PYTHON if name == IPYTHON else name, code, stdin, (timeout, timeout))
    await box.open()
    try:
        ended = (await box.run(Program(steps, settings.max_output, name), PROGRAM))[-1]
    finally:
        await box.close()
    said = b"" if ended.reason is None else f"muster sandbox: {_words(ended.reason, ended.words, timeout)}\n".encode()
    if ended.reason == "timeout":
        code_of_shell = TIMED_OUT
    else:
        code_of_shell = BY_SIGNAL + ended.signal if ended.signal is not None else ended.exit_code or 0
    return ended.stdout.data, ended.stderr.data + said, code_of_shell


def _words(reason: str, words: str, timeout: float) -> str:
    return f"it was ended after {timeout:g} s" if reason == "timeout" else words
