"""A shell or command beside a run: `agent.pyz attach ATTEMPT_DIR RANK CYCLE ADDRESS [COMMAND...]`.

Its environment equals the driver's. It is built from the environment of the node's agent in /proc: so it includes
`--setup` without running that again, and no secret is written to a file or a command line.
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

from muster.agent.environment import node_environment
from muster.agent.job import Identity, Job
from muster.agent.ray.cluster import RayCluster
from muster.agent.services.discovery import published_variables
from muster.exit_codes import BY_SIGNAL, INFRASTRUCTURE_FAILED, NOT_EXECUTABLE, NOT_STARTED
from muster.rundir import AttemptPaths, RunPaths, make_private_dirs, private_opener, read_record
from muster.rundir.hosts import host_file_name
from muster.rundir.session_command import NO_RAY_ADDRESS, SESSION_COMMAND

AGENT_POLL_S = 1.0  # how often the session checks that the node's agent runs
TOUCH_POLLS, GRACE_POLLS = 10, 5  # polls between touches of the session's file; polls from TERM to KILL
_TERMINAL_VARIABLES = ("TERM", "COLORTERM", "COLUMNS", "LINES")
_FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL = 0x80  # si_code of a signal that a terminal sends


class NodeUnavailable(Exception):
    """The node cannot run a session; the message gives the reason."""


def main(argv: list[str]) -> int:
    attempt, node_index, cycle, address = AttemptPaths(argv[0]), int(argv[1]), int(argv[2]), argv[3]
    command: list[str] = json.loads(os.environ.get(SESSION_COMMAND, "[]"))
    run = RunPaths(os.path.dirname(attempt.root))
    try:
        base = agent_environment(attempt, node_index)
        identity = Identity.from_environment(run.root, base)
        job = Job.load(run)
        cluster = RayCluster(identity, job)
        cluster.address = None if address == NO_RAY_ADDRESS else address
        env = cluster.environment(node_environment(identity, cycle, base))
        env.update({name: os.environ[name] for name in _TERMINAL_VARIABLES if name in os.environ})
        env.update(published_variables(attempt, identity.node_index, cycle))
        env.update(MUSTER_RANK=str(identity.node_index), MUSTER_HOST=identity.host)
        os.chdir(job.workdir)
        _copy_affinity(attempt, node_index)
    except (NodeUnavailable, OSError) as error:
        print(f"muster: {error}", file=sys.stderr)
        return INFRASTRUCTURE_FAILED
    path = os.path.join(attempt.sessions_dir, f"{host_file_name(identity.host)}-{os.getpid()}")
    return AttachedSession(path, read_record(attempt.node_record(node_index))["pid"]).run(command, env)


def agent_environment(attempt: AttemptPaths, node_index: int) -> dict[str, str]:
    """Return the environment of the node's agent, which includes --setup."""
    record = read_record(attempt.node_record(node_index))
    gone = (
        f"the agent of node {node_index} does not run on {os.uname().nodename}: the run has ended, or uses another node"
    )
    try:
        with open(f"/proc/{record['pid']}/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except (KeyError, OSError):
        raise NodeUnavailable(gone) from None
    env = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    if env.get("MUSTER_RANK") != str(node_index):
        raise NodeUnavailable(gone)
    return env


def _copy_affinity(attempt: AttemptPaths, node_index: int) -> None:
    """Use all CPUs of the agent: Slurm binds a step of one task to one CPU."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(read_record(attempt.node_record(node_index))["pid"]))


def shell_of(env: Mapping[str, str]) -> str:
    """Return the user's shell, or /bin/sh if this node (or container) does not have it."""
    with contextlib.suppress(KeyError):
        env = {"SHELL": pwd.getpwuid(os.getuid()).pw_shell, **env}
    chosen = env.get("SHELL", "")
    return chosen if os.access(chosen, os.X_OK) else "/bin/sh"


class AttachedSession:
    """The command's parent, which exits with the command's code.

    While the command runs, it touches a file in the run directory, so that an idle cluster counts as used. When the
    node's agent ends, it ends the command.
    """

    def __init__(self, path: str, agent: int) -> None:
        self._path, self._agent = path, agent

    def run(self, command: list[str], env: dict[str, str]) -> int:
        argv = command or [shell_of(env)]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_FORWARDED})
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            _exec(argv, env)
        self._touch()
        try:
            return self._wait(child, is_shell=not command)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _wait(self, child: int, is_shell: bool) -> int:
        term = signal.SIGHUP if is_shell else signal.SIGTERM  # a shell at a terminal ignores SIGTERM
        polls_without_agent = 0
        for poll in itertools.count(1):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else BY_SIGNAL - code
            received = signal.sigtimedwait({signal.SIGCHLD, *_FORWARDED}, AGENT_POLL_S)
            if received is None:
                if poll % TOUCH_POLLS == 0:
                    self._touch()
                if not os.path.exists(f"/proc/{self._agent}"):
                    polls_without_agent += 1
                    os.kill(child, term if polls_without_agent <= GRACE_POLLS else signal.SIGKILL)
            elif received.si_signo != signal.SIGCHLD and not _from_terminal(received):
                os.kill(child, term if received.si_signo == signal.SIGTERM else received.si_signo)
        raise AssertionError("unreachable: the loop is endless")

    def _touch(self) -> None:
        """Touch the session's file; the session continues if the filesystem cannot be written."""
        with contextlib.suppress(OSError):
            make_private_dirs(os.path.dirname(self._path))
            with open(self._path, "a", opener=private_opener):
                os.utime(self._path)


def _from_terminal(received: signal.struct_siginfo) -> bool:
    """Return whether a terminal sent the signal: it then sent it to the command as well."""
    return received.si_signo in (signal.SIGINT, signal.SIGQUIT) and received.si_code == _FROM_KERNEL


def _exec(argv: list[str], env: dict[str, str]) -> None:
    """Replace the child by the command; exit with a shell's code if that fails."""
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"muster: {argv[0]} could not be started: {error.strerror}\n".encode())
        os._exit(NOT_EXECUTABLE if isinstance(error, PermissionError) else NOT_STARTED)
