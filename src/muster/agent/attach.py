"""A shell, or a command, beside the run: `agent.pyz attach ATTEMPT_DIR RANK CYCLE ADDRESS [COMMAND...]`.

Its environment is the driver's. It is made from that of the node's agent, which the kernel keeps: so it is what
`--setup` left, without running that again, and no secret is written down or stands on a command line.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys
from collections.abc import Mapping

from muster.agent.cluster import Cluster
from muster.agent.environment import given_variables, job_environment
from muster.agent.job import Identity, Job
from muster.agent.ray_node.settings import file_name
from muster.board import AttemptPaths, RunPaths, read_record

BEAT_S = 10.0  # how often a session shows that it is there
NOT_THERE = 125
NO_ADDRESS = "-"
_TERMINALS_OWN = ("TERM", "COLORTERM", "COLUMNS", "LINES")
_PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL = 0x80  # si_code of what a terminal sends, and it sends that to the command too


class NotThere(Exception):
    """The node cannot take a session; in words."""


def main(argv: list[str]) -> int:
    attempt, rank, cycle, address, command = AttemptPaths(argv[0]), int(argv[1]), int(argv[2]), argv[3], argv[4:]
    run = RunPaths(os.path.dirname(attempt.root))
    try:
        base = agent_environment(attempt, rank)
        identity = Identity.from_environment(run.root, base)
        job = Job.load(run)
        cluster = Cluster(identity, job)
        cluster.address = None if address == NO_ADDRESS else address
        env = cluster.environment(job_environment(base, given_variables(identity), identity, cycle))
        env.update({name: os.environ[name] for name in _TERMINALS_OWN if name in os.environ})
        os.chdir(job.workdir)
        _take_affinity(attempt, rank)
    except (NotThere, OSError) as error:
        print(f"muster: {error}", file=sys.stderr)
        return NOT_THERE
    mark = os.path.join(attempt.sessions_dir, f"{file_name(identity.host)}-{os.getpid()}")
    return Session(mark).run(command, env)


def agent_environment(attempt: AttemptPaths, rank: int) -> dict[str, str]:
    """What the node's agent was started with, after --setup."""
    record = read_record(attempt.node_record(rank))
    gone = f"the agent of rank {rank} is not on {os.uname().nodename}: the run has ended, or is elsewhere"
    try:
        with open(f"/proc/{record['pid']}/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except (KeyError, OSError):
        raise NotThere(gone) from None
    env = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    if env.get("MUSTER_RANK") != str(rank):
        raise NotThere(gone)
    return env


def _take_affinity(attempt: AttemptPaths, rank: int) -> None:
    """All CPUs that the agent has: Slurm would bind a step of one task to one."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(read_record(attempt.node_record(rank))["pid"]))


def shell_of(env: Mapping[str, str]) -> str:
    """The user's own, where this node (or container) has it."""
    with contextlib.suppress(KeyError):
        env = {"SHELL": pwd.getpwuid(os.getuid()).pw_shell, **env}
    chosen = env.get("SHELL", "")
    return chosen if os.access(chosen, os.X_OK) else "/bin/sh"


class Session:
    """The command's parent: it keeps a file in the run directory while the command lasts, and leaves with its code.

    So an idle cluster knows that it is in use, on whichever of its nodes.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def run(self, command: list[str], env: dict[str, str]) -> int:
        argv = command or [shell_of(env)]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_PASSED_ON})
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            _become(argv, env)
        self._beat()
        try:
            return self._wait(child, is_shell=not command)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _wait(self, child: int, is_shell: bool) -> int:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            came = signal.sigtimedwait({signal.SIGCHLD, *_PASSED_ON}, BEAT_S)
            if came is None:
                self._beat()
            elif came.si_signo in (signal.SIGINT, signal.SIGQUIT) and came.si_code == _FROM_KERNEL:
                continue
            elif came.si_signo != signal.SIGCHLD:
                # A shell at a terminal ignores SIGTERM; a hangup is what ends it.
                hangup = is_shell and came.si_signo == signal.SIGTERM
                os.kill(child, signal.SIGHUP if hangup else came.si_signo)

    def _beat(self) -> None:
        """A filesystem that cannot be written costs the mark, not the session."""
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "a"):
                os.utime(self._path)


def _become(argv: list[str], env: dict[str, str]) -> None:
    """In the child: the command, or as a shell says it that there is none."""
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"muster: {argv[0]} could not be started: {error.strerror}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)
