"""A shell, or a command, beside the run: `agent.pyz attach ATTEMPT_DIR RANK CYCLE ADDRESS [COMMAND...]`.

Its environment is the driver's. It is made from that of the node's agent, which the kernel keeps: so it is what
`--setup` left, without running that again, and no secret is written down or stands on a command line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import signal
import sys
from collections.abc import Mapping

from muster.agent.environment import given_variables, job_environment
from muster.agent.job import Identity, Job
from muster.agent.ray.cluster import RayCluster
from muster.agent.services.discovery import published_variables
from muster.exit_codes import BY_SIGNAL, INFRASTRUCTURE_FAILED, NOT_EXECUTABLE, NOT_STARTED
from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.hosts import host_file_name
from muster.rundir.session_command import NO_RAY_ADDRESS, SESSION_COMMAND

LOOK_S = 1.0
BEAT_LOOKS, GRACE_LOOKS = 10, 5  # how often a session shows that it is there; how long it may outlive the run
_TERMINALS_OWN = ("TERM", "COLORTERM", "COLUMNS", "LINES")
_PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL = 0x80  # si_code of what a terminal sends, and it sends that to the command too


class NotThere(Exception):
    """The node cannot take a session; in words."""


def main(argv: list[str]) -> int:
    attempt, rank, cycle, address = AttemptPaths(argv[0]), int(argv[1]), int(argv[2]), argv[3]
    command: list[str] = json.loads(os.environ.get(SESSION_COMMAND, "[]"))
    run = RunPaths(os.path.dirname(attempt.root))
    try:
        base = agent_environment(attempt, rank)
        identity = Identity.from_environment(run.root, base)
        job = Job.load(run)
        cluster = RayCluster(identity, job)
        cluster.address = None if address == NO_RAY_ADDRESS else address
        env = cluster.environment(job_environment(base, given_variables(identity), identity, cycle))
        env.update({name: os.environ[name] for name in _TERMINALS_OWN if name in os.environ})
        env.update(published_variables(attempt, identity.rank, cycle))
        env.update(MUSTER_RANK=str(identity.rank), MUSTER_HOST=identity.host)
        os.chdir(job.workdir)
        _take_affinity(attempt, rank)
    except (NotThere, OSError) as error:
        print(f"muster: {error}", file=sys.stderr)
        return INFRASTRUCTURE_FAILED
    mark = os.path.join(attempt.sessions_dir, f"{host_file_name(identity.host)}-{os.getpid()}")
    return AttachedSession(mark, read_record(attempt.node_record(rank))["pid"]).run(command, env)


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


class AttachedSession:
    """The command's parent: it keeps a file in the run directory while the command lasts, and leaves with its code.

    So an idle cluster knows that it is in use, on whichever of its nodes. When the node's agent has gone, the command
    is ended too: of a run nothing is left.
    """

    def __init__(self, path: str, agent: int) -> None:
        self._path, self._agent = path, agent

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
        polite = signal.SIGHUP if is_shell else signal.SIGTERM  # a shell at a terminal ignores SIGTERM
        alone = 0
        for look in itertools.count(1):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else BY_SIGNAL - code
            came = signal.sigtimedwait({signal.SIGCHLD, *_PASSED_ON}, LOOK_S)
            if came is None:
                if look % BEAT_LOOKS == 0:
                    self._beat()
                if not os.path.exists(f"/proc/{self._agent}"):
                    alone += 1
                    os.kill(child, polite if alone <= GRACE_LOOKS else signal.SIGKILL)
            elif came.si_signo != signal.SIGCHLD and not _from_terminal(came):
                os.kill(child, polite if came.si_signo == signal.SIGTERM else came.si_signo)
        raise AssertionError("a command ends")

    def _beat(self) -> None:
        """A filesystem that cannot be written costs the mark, not the session."""
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "a"):
                os.utime(self._path)


def _from_terminal(came: signal.struct_siginfo) -> bool:
    """What a terminal sends it sends to the command too."""
    return came.si_signo in (signal.SIGINT, signal.SIGQUIT) and came.si_code == _FROM_KERNEL


def _become(argv: list[str], env: dict[str, str]) -> None:
    """In the child: the command, or as a shell says it that there is none."""
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"muster: {argv[0]} could not be started: {error.strerror}\n".encode())
        os._exit(NOT_EXECUTABLE if isinstance(error, PermissionError) else NOT_STARTED)
