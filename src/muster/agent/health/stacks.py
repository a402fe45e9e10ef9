"""What every process of the run on this node is doing: the Python stacks, for a run that has stalled.

py-spy reads another process's stack without its help; it comes with ray[default]. Where it is missing, or not allowed
to look, the kernel still tells what each process waits for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from muster.process import descendants

EACH_S = 10.0  # for one process
ALL_S = 40.0  # for all of a node; what has not been looked at by then is left out


def dump(path: str, env: Mapping[str, str]) -> bool:
    """Write the stacks of all descendants of this process; whether Python's own could be had."""
    spy = shutil.which("py-spy", path=env.get("PATH"))
    deadline, seen = time.monotonic() + ALL_S, False
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        for pid in sorted(descendants(os.getpid())):
            if time.monotonic() > deadline:
                file.write("(no time for the rest)\n")
                break
            stack = python_stack(spy, pid) if spy and is_python(pid) else None
            seen = seen or stack is not None
            file.write(f"== process {pid}: {describe(pid)}\n{stack or kernel_state(pid)}\n")
    return seen


def python_stack(spy: str, pid: int) -> str | None:
    try:
        done = subprocess.run(
            [spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=EACH_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def describe(pid: int) -> str:
    """The program alone: its arguments may hold what is nobody's business."""
    return _read(f"/proc/{pid}/comm").strip() or "ended"


def kernel_state(pid: int) -> str:
    """'sleeping in do_wait': less than a stack, but available for everything."""
    state = [line for line in _read(f"/proc/{pid}/status").splitlines() if line.startswith(("State:", "Threads:"))]
    return "\n".join([*state, f"waits in {_read(f'/proc/{pid}/wchan').strip() or 'user code'}"]) + "\n"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
