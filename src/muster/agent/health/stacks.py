"""Stack dumps of the run's processes on this node, for a stalled run.

py-spy, which ray[default] installs, reads the Python stack of another process. If it is missing or not permitted, the
dump shows the kernel function that each process waits in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from muster.process import descendants
from muster.process.proctree import read_proc_file
from muster.rundir import private_opener

PROCESS_TIMEOUT_S = 10.0  # for the stack of one process
NODE_TIMEOUT_S = 40.0  # for all processes of a node; those not dumped by then are left out


def dump_stacks(path: str, env: Mapping[str, str]) -> bool:
    """Write the stacks of all descendants of this process; return whether any Python stack could be read."""
    spy = shutil.which("py-spy", path=env.get("PATH"))
    deadline, seen = time.monotonic() + NODE_TIMEOUT_S, False
    with open(path, "w", encoding="utf-8", errors="replace", opener=private_opener) as file:
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
            [spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S
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
    """Return the program's name, without arguments, which may hold secrets."""
    return read_proc_file(f"/proc/{pid}/comm").strip() or "ended"


def kernel_state(pid: int) -> str:
    """Return state, thread count and wait channel of the process, which are available for every process."""
    status = read_proc_file(f"/proc/{pid}/status").splitlines()
    state = [line for line in status if line.startswith(("State:", "Threads:"))]
    return "\n".join([*state, f"waits in {read_proc_file(f'/proc/{pid}/wchan').strip() or 'user code'}"]) + "\n"
