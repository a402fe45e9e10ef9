"""Before anybody is served: a program in the sandbox tells whether it runs, and whether the walls stand."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from muster.sandbox.engine.admission_queue import PROGRAM
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.models import Program, ProgramStep

if TYPE_CHECKING:
    from muster.sandbox.engine.engine import Engine

TIMEOUT_S = 30.0

# Prints what it could do and should not be able to.
PROGRAM_INSIDE = """
import json, os, socket, sys
import encodings.idna  # a module that nobody has imported yet: can the library be read?
open("probe", "w").write("x")
could = []
def attempt(what, do):
    try:
        do()
    except OSError:
        return
    could.append(what)
if not {network}:
    attempt("open an internet socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    attempt("send a datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("write to " + {foreign!r}, lambda: open({foreign!r} + "/intruder", "w"))
attempt("read " + {secret!r}, lambda: open({secret!r}).read())
attempt("trace the service", lambda: open("/proc/{pid}/mem", "rb"))
if {is_root} and os.getuid() == 0:
    could.append("be root")
print(json.dumps(could))
"""


async def verify(box: Engine) -> None:
    """SandboxError says what is wrong."""
    assert box.pool.level is not None
    secret = os.path.join(box.place, "secret")
    with open(secret, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write("secret")
    code = PROGRAM_INSIDE.format(
        network=box.settings.network, foreign=box.place, secret=secret, pid=os.getpid(), is_root=os.getuid() == 0
    )
    try:
        work = Program((ProgramStep({"do": "python", "code": code}, TIMEOUT_S),), 10_000, "python")
        (ended,) = await box.run(work, PROGRAM)
    finally:
        os.unlink(secret)
    if not ended.succeeded:
        said = ended.stderr.text(2000).strip().splitlines()[-1:] or [ended.words]
        raise SandboxError(f"a first program failed in the sandbox: {said[0]}{_hint(box, said[0])}")
    could = json.loads(ended.stdout.text(10_000))
    if could and box.pool.level.recipe.level != "process":
        raise SandboxError(f"the walls do not stand: a program could {', '.join(could)}")


def _hint(box: Engine, said: str) -> str:
    unreadable = "No module named" in said or "Permission denied" in said
    return f" (can every user read {box.settings.python} and its library?)" if unreadable else ""
