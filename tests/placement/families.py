"""A program that is hard to get rid of, for tests that do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.placement.conftest import eventually

if TYPE_CHECKING:
    from tests.placement.conftest import Marked

    from muster.placement.runtime.managed import ManagedSubprocess

# A launcher, a child in its group, one in a session of its own, a daemon, and one that forks and leaves a hundred times
# a second; all deaf to TERM. All inherit a lock, which nobody can have before the last of them is gone.
FAMILY = """
import fcntl, os, signal, subprocess, sys, time
lock = os.open(os.environ["MUSTER_PLACEMENT_TEST"], os.O_RDONLY | os.O_CREAT, 0o600)
fcntl.flock(os.dup2(lock, 9), fcntl.LOCK_SH)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
leap = "import os, time\\nwhile True:\\n    if os.fork(): os._exit(0)\\n    time.sleep(0.01)"
sleep = [sys.executable, "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"]
subprocess.Popen(sleep, pass_fds=[9])
subprocess.Popen(sleep, pass_fds=[9], start_new_session=True)
subprocess.Popen([sys.executable, "-S", "-c", leap], pass_fds=[9], start_new_session=True).wait()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sleep[0], sleep)
    os._exit(0)
os.wait()
print("family complete", flush=True)
time.sleep(1000)
"""
SIZE = 4  # without the one that is now here, now there


def family(group: Any, marked: Marked, label: str = "family", **options: Any) -> ManagedSubprocess:
    """One of these in the group's first bundle."""
    from muster.placement.runtime.managed import ManagedSubprocess

    process = ManagedSubprocess.spawn(
        label, group, 0, num_gpus=0, python_args=["-S", "-c", FAMILY], subprocess_env=marked.env, **options
    )
    eventually("the whole family", lambda: "family complete" in process.read_log_tail())
    eventually("each of it to be seen", lambda: len(marked.alive()) >= SIZE)
    assert not marked.gone()
    return process
