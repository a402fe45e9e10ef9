"""An execution: the process in which a program runs. It is forked before its job arrives and inherits the confinement.

It closes everything but its job socket and its standard streams, cuts itself off from the worker with Landlock, waits
for the job, and runs it: a Python program in this warm interpreter, another program by exec, or a session.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import base64
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
from typing import Any, Protocol

from muster.sandbox.jail import gvisor, kernel, notebook, program, session, wire

JOB = 3  # the descriptor of the job socket
DESCRIPTORS = 3  # sent with the spawn command: the job socket, stdout, stderr
NICE = 5  # lower priority than the server and the worker, which must be able to kill any number of processes
INTERPRETED = ("python", "notebook", "session")  # jobs that run in this interpreter
CANNOT_START = 127  # as in a shell


class Rules(Protocol):
    """The restrictions that an execution adds to those of its worker."""

    def enforce(self) -> None: ...


def main(fds: list[int], rules: Rules) -> None:
    """Run one job. Never returns: the frames above are the worker's."""
    try:
        channel = _set_up(fds, rules)
        job, rest = wire.receive_job(channel)
        if job is None:
            os._exit(0)  # the execution is not needed
        if rest is not None:
            os.dup2(rest, 0)  # the rest of the file is the input
            os.close(rest)
        _run(job, channel)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"sandbox: {str(error) or type(error).__name__}\n".encode())
    finally:
        os._exit(CANNOT_START)


def _set_up(fds: list[int], rules: Rules) -> socket.socket:
    """Prepare the process with few, plain calls: every page touched here is copied again for each program."""
    job, out, err = fds
    signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    os.setsid()
    os.nice(NICE)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # unlike the worker: the program may use its own /proc entries
    try:
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)
    except OSError:
        pass  # there is no /proc, or we may not write to it
    rules.enforce()
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    if job != JOB:
        os.dup2(job, JOB, inheritable=False)
    kernel.close_from(JOB + 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, JOB)


def _run(job: dict[str, Any], channel: socket.socket) -> None:
    gc.enable()
    limit_data(job.get("reserves_memory", False))
    if "limits" in job:
        _limit(job["limits"])
        if job["do"] in INTERPRETED and "memory_mb" in job["limits"]:
            gvisor.limit_address_space(job["limits"]["memory_mb"] << 20)
    for name, value in job.get("env", {}).items():
        os.environ.setdefault(name, value)  # what the operator has set stays
    if "files" in job or "texts" in job:
        _write_files(job)
    if job["do"] == "session":
        session.serve(channel, job["backend"])
    channel.close()
    if job["do"] == "python":
        program.run(job["code"], job.get("file"))
    elif job["do"] == "notebook":
        notebook.run(job["cells"], job["backend"], job["cell_timeout"])
    elif job["do"] == "fetch":
        _fetch(job["names"])
    else:
        _execute(job["argv"])


def limit_data(reserves_memory: bool) -> None:
    """Limit the private memory of each process for good: to the worker's limit, unless the language reserves memory.

    The kernel counts what is reserved, such as 1 GB for the stack of each thread of Lean. What such a program uses is
    limited for its whole tree, by the cgroup or the checks of the worker, as it is for all programs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    final = hard if reserves_memory else soft
    resource.setrlimit(resource.RLIMIT_DATA, (final, final))


def _limit(limits: dict[str, int]) -> None:
    """Lower the limits; they cannot exceed the worker's."""
    if "memory_mb" in limits:
        value = limits["memory_mb"] << 20
        resource.setrlimit(resource.RLIMIT_DATA, (value, value))
    if "cpu_s" in limits:
        resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))
    if "processes_of_user" in limits:
        value = limits["processes_of_user"]
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (value, value))


def _write_files(job: dict[str, Any]) -> None:
    texts = {name: text.encode() for name, text in job.get("texts", {}).items()}
    for name, data in {**{n: base64.b64decode(d) for n, d in job.get("files", {}).items()}, **texts}.items():
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)


def _fetch(names: list[str]) -> None:
    """Print files that a program has written as JSON with base64; missing ones are left out."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError), open(name, "rb") as file:
            found[name] = base64.b64encode(file.read()).decode()
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def _execute(argv: list[str]) -> None:
    # Python changes the first two at its start, `nohup` ignores the third, and a shell lets background programs ignore
    # the last two.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL)
    os.execv(argv[0], argv)
