"""The process that runs the built-in checks of a node, so that a device or filesystem that hangs cannot stop the agent.

It is forked when the agent starts: a new interpreter for each check would delay the start of the node. It forks a
process for each request, and never waits for one. Requests and answers are messages of a socket, as JSON:

    {"id": 1, "checks": {"disk": 1048576.0, ...}, "run_dir": ...}
    {"id": 1, "results": [{"name": "disk", "verdict": "passed", "reason": "", "measured": null, "seconds": 0.0}, ...]}
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from muster.agent.guardian import PR_SET_NAME, PR_SET_PDEATHSIG, RELAYED_SIGNALS
from muster.agent.health.checks.finding import CheckedNode, Verdict
from muster.agent.health.checks.runner import NodeCheckResult, run_checks
from muster.lifecycle.node_checks import BY_NAME
from muster.process.proctree import become_subreaper, prctl

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 17
ANSWER_MARGIN_S = 5.0  # after the last deadline: on a busy machine the process waits to run
DEFAULT_TEMP_DIR = "/tmp"
PROCESS_NAME = b"muster-checks"


class CheckProcess:
    """The agent's side. Without a process (`link` is None) no check is run."""

    def __init__(self, link: socket.socket | None) -> None:
        self._link = link
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[list[NodeCheckResult]]] = {}

    async def run(self, selected: Mapping[str, float | None], run_dir: str) -> list[NodeCheckResult]:
        """Run the checks and return their results. Checks of a process that was ended have none."""
        if self._link is None or not selected:
            return []
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.add_reader(self._link, self._on_answer, self._link)
        number = next(self._ids)
        answer = self._waiting[number] = loop.create_future()
        request = {"id": number, "checks": selected, "run_dir": run_dir}
        deadline = sum_of_deadlines(selected) + ANSWER_MARGIN_S
        try:
            await loop.sock_sendall(self._link, json.dumps(request).encode())
            return await asyncio.wait_for(answer, deadline)
        except asyncio.TimeoutError:
            return [NodeCheckResult("checks", Verdict.FAILED, f"did not answer within {deadline:g} s", None, deadline)]
        except OSError as error:
            logger.warning("the process that runs the node's checks is gone: %s", error)
            return []
        finally:
            del self._waiting[number]
            if not self._waiting and self._link is not None:
                loop.remove_reader(self._link)

    def close(self) -> None:
        """End the process: it waits for nothing, and ends without its connection."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _on_answer(self, link: socket.socket) -> None:
        try:
            message = link.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            logger.warning("the process that runs the node's checks was ended")
            asyncio.get_running_loop().remove_reader(link)
            link.close()
            self._link = None
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result([])
            return
        answer = json.loads(message)
        waited = self._waiting.get(answer["id"])
        if waited is not None and not waited.done():
            waited.set_result(
                [NodeCheckResult(**{**one, "verdict": Verdict(one["verdict"])}) for one in answer["results"]]
            )


def sum_of_deadlines(selected: Mapping[str, float | None]) -> float:
    """Return the longest time in seconds that the selected checks may take."""
    checks = [BY_NAME[name] for name in selected]
    together = max((check.deadline for check in checks if not check.compared), default=0.0)
    return together + sum(check.deadline for check in checks if check.compared)


def start_check_process() -> CheckProcess:
    """Fork the process. Call this while the agent has one thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        try:
            _serve(theirs, parent)
        finally:
            os._exit(0)
    theirs.close()
    ours.setblocking(False)
    return CheckProcess(ours)


def _serve(link: socket.socket, parent: int) -> None:
    """Fork a process for each request until the agent ends."""
    _become_child(parent)
    for signum in RELAYED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)  # Slurm sends them to all processes; they are for the agent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children, and orphans of these
    become_subreaper()
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in (0, 1, 2, link.fileno()):  # the guardian's link, above all
            with contextlib.suppress(OSError):
                os.close(int(entry))
    with contextlib.suppress(OSError):
        prctl(PR_SET_NAME, ctypes.c_char_p(PROCESS_NAME))
    own = os.getpid()
    while request := link.recv(MAX_MESSAGE_BYTES):
        if os.fork() == 0:
            try:
                _become_child(own)
                os.setsid()  # a group for the programs that the checks start
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # checks wait for these programs
                link.send(json.dumps(answer_request(json.loads(request), os.environ)).encode())
            finally:
                os.killpg(0, signal.SIGKILL)


def _become_child(parent: int) -> None:
    """End with the parent."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def temporary_directory(env: Mapping[str, str]) -> str:
    """Return the directory of temporary files. TMPDIR may name one that only other nodes have."""
    given = env.get("TMPDIR", "")
    return given if os.path.isdir(given) else DEFAULT_TEMP_DIR


def answer_request(request: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Run the requested checks and return the answer."""
    node = CheckedNode(env, temporary_directory(env), request["run_dir"])
    from muster.agent.health.checks.table import IMPLEMENTATIONS  # only here: the agent does not need their modules

    results = run_checks(node, request["checks"], IMPLEMENTATIONS)
    return {"id": request["id"], "results": [asdict(one) for one in results]}
