"""The guardian: the parent process of the agent, which certifies that nothing is left of an agent that was killed.

The task that the launcher started forks at its beginning: the parent becomes the guardian, the child the agent. Slurm
waits for the task and kills everything else on the node when it ends, so only the task itself can outlive the agent.

    event                                what the guardian does
    a signal                             It passes it on: Slurm under cgroup tracking signals only the task. If the
                                         agent got it as well, it handles it once (`AgentSignals`).
    the agent ends with 0, or has not    It ends in the same way.
    claimed a term
    an agent that has claimed a term     It waits until no process of the agent is left. As the next subreaper it adopts
    is killed or fails                   them all, so the kernel says when the last one has ended; pids and tags play
                                         no role. It writes a certificate for each of those terms, and ends in the same
                                         way.
    processes are left after some time,  It ends without a certificate, and members wait for the fence as always.
    or the filesystem hangs
    the guardian is killed               The kernel kills the agent. There is no certificate.

A certificate is true from the moment it is written and stays true: an agent is started once in an attempt. A stopped
agent has not ended. `election/handover.py` says what follows from a certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection

from muster.agent.environment import remove_control_directories
from muster.agent.job import Identity
from muster.process.proctree import POLL_S, become_subreaper, own_children, prctl, read_process
from muster.process.unkillable import sweep
from muster.rundir import is_listed, read_record, write_json

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGURG)
RELAYED_SIGNALS = (*STOP_SIGNALS, *FORWARDED_SIGNALS)
CERTIFY_TIMEOUT_S = 12.0  # members have waited for the fence by then
WRITE_TIMEOUT_S = 5.0  # for the certificate: a filesystem that hangs must not keep the launcher waiting
SETTLED_LISTS = 3  # of children without a new one; a list misses a process while another one ends
RELAY_DELAY_S, SAME_SIGNAL_S = 0.1, 0.5  # a signal that is relayed, and also received within these times, is one signal
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
NAME = b"muster-guardian"  # at most 15 characters


class Guardian:
    """The agent's connection to its guardian."""

    def __init__(self, link: socket.socket | None) -> None:
        """`link`: None if there is no guardian."""
        self.link = link

    def note_claim(self, term: int) -> None:
        """Tell the guardian that this agent is about to claim a term. The message waits until the agent has ended."""
        if self.link is not None:
            with contextlib.suppress(OSError):  # without it there is no certificate
                self.link.send(str(term).encode())


def start_guardian(identity: Identity) -> Guardian:
    """Fork: return in the child, which is the agent. The parent becomes the guardian and never returns."""
    before = set(own_children())  # of --setup, which ran in this process
    guardians, agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guardians.setblocking(False)
    agents.setblocking(False)
    become_subreaper()
    sys.stdout.flush()
    sys.stderr.flush()
    guardian = os.getpid()
    # A signal that arrives before the guardian has handlers waits for them. It would end the guardian and so the agent.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED_SIGNALS)
    agent = os.fork()
    if agent == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        guardians.close()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:  # it ended before that
            os._exit(1)
        return Guardian(agents)
    code = 1
    try:
        agents.close()
        for signum in RELAYED_SIGNALS:
            signal.signal(signum, lambda number, _: _relay(guardians, agent, number))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = _guard(identity, agent, guardians, before)
    finally:
        os._exit(code)


def _guard(identity: Identity, agent: int, link: socket.socket, before: Collection[int]) -> int:
    """Wait for the agent's end, certify it, and end in the same way."""
    prctl(PR_SET_NAME, ctypes.c_char_p(NAME))
    os.waitid(os.P_PID, agent, os.WEXITED | os.WNOWAIT)
    for signum in RELAYED_SIGNALS:  # before its pid can belong to another process
        signal.signal(signum, lambda number, _: None)
    _, status = os.waitpid(agent, 0)
    terms = _claimed_terms(link)
    if status and terms and _wait_for_children(before):
        _write_certificates(identity, terms)
    remove_control_directories(identity)
    if os.WIFSIGNALED(status):
        _die_of(os.WTERMSIG(status))
        return 128 + os.WTERMSIG(status)
    sweep()  # processes that --setup has left; the agent has ended its own
    return os.WEXITSTATUS(status)


def _relay(link: socket.socket, agent: int, signum: int) -> None:
    """Pass a signal on to the agent, which has not been reaped yet: its pid is its own."""
    try:
        link.send(str(signum).encode())
    except BlockingIOError:
        pass  # a stopped agent has enough of them
    except OSError:  # it has become another program (`agent.pyz orphan`), or is about to end
        if read_process(agent) is not None:
            os.kill(agent, signum)


def _claimed_terms(link: socket.socket) -> list[int]:
    """Return the terms that the agent has noted; all its messages have arrived when it has ended."""
    terms = []
    with contextlib.suppress(OSError):
        while message := link.recv(64):
            terms.append(int(message))
    return terms


def _wait_for_children(before: Collection[int]) -> bool:
    """Return True when no process of the agent is left, False if some are left after CERTIFY_TIMEOUT_S."""
    deadline, settled = time.monotonic() + CERTIFY_TIMEOUT_S, 0
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                settled = 0
        except ChildProcessError:
            return True
        children = own_children()
        settled = settled + 1 if children and set(children) <= set(before) else 0
        if settled == SETTLED_LISTS:
            return True
        time.sleep(POLL_S)
    return False


def _write_certificates(identity: Identity, terms: Collection[int]) -> None:
    """Write them in a child process, and wait for it with a limit."""
    writer = os.fork()
    if writer == 0:
        try:
            certify(identity, terms)
        finally:
            os._exit(0)
    deadline = time.monotonic() + WRITE_TIMEOUT_S
    while not os.waitpid(writer, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(writer, signal.SIGKILL)
            return
        time.sleep(POLL_S)


def certify(identity: Identity, terms: Collection[int]) -> None:
    """Write a certificate for each term that this node has claimed, unless the run is over."""
    attempt, node_index = identity.attempt, identity.node_index
    if is_listed(attempt.outcome):
        return
    for term in terms:
        if read_record(attempt.leader(term)).get("rank") == node_index:
            record = {"term": term, "rank": node_index, "host": identity.host, "time": time.time()}
            write_json(attempt.leader_gone(term), record)


def _die_of(signum: int) -> None:
    """End by the signal that ended the agent, so that the launcher reports that. Init of a container cannot."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if signum != signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


class AgentSignals:
    """Handles each signal once, whether it was sent to the agent, to its guardian, or to both."""

    def __init__(self, guardian: Guardian) -> None:
        self._loop, self._link = asyncio.get_running_loop(), guardian.link
        self._handlers: dict[int, Callable[[], object]] = {}
        self._handled: dict[int, float] = {}  # when each signal was handled last
        if self._link is not None:
            self._loop.add_reader(self._link, self._on_relayed, self._link)

    def handle(self, signum: int, handler: Callable[[], object]) -> None:
        """Call the handler for this signal, in place of an earlier one."""
        self._handlers[signum] = handler
        self._loop.add_signal_handler(signum, self._on_signal, signum)

    def _on_signal(self, signum: int) -> None:
        self._handled[signum] = self._loop.time()
        self._handlers[signum]()

    def _on_relayed(self, link: socket.socket) -> None:
        try:
            message = link.recv(64)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._loop.remove_reader(link)  # the guardian is gone, and the kernel ends this process
        elif int(message) in self._handlers:
            self._loop.call_later(RELAY_DELAY_S, self._handle_once, int(message))

    def _handle_once(self, signum: int) -> None:
        if self._loop.time() - self._handled.get(signum, float("-inf")) > SAME_SIGNAL_S:
            self._on_signal(signum)
