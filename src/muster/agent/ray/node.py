"""This node's Ray: imported early, started when the leader requests it, retried with fresh state."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from muster.agent.health.limits import warnings
from muster.agent.log_collection import LogCollection, group_delay
from muster.agent.ray import resources, settings
from muster.agent.ray.labels import NODE_TYPE_VARIABLE, NodeFacts, node_type, probe_nvlink_domain
from muster.agent.ray.resources import ResourceShare
from muster.agent.ray.session_logs import ArchiveOptions, should_keep
from muster.agent.ray.settings import RayOptions
from muster.agent.ray.start_attempt import StartAttempt
from muster.agent.ray.tuning import defaults
from muster.ports.blocks import take_block
from muster.process import SpawnError

START_ATTEMPTS = 3
TOKENS_SINCE = (2, 52)  # first release of Ray with token authentication
START_BACKOFF_S = 0.5  # doubled after each attempt
FAILED_START_LOGS_S = 10.0  # for archiving the logs of a failed attempt


@dataclass(frozen=True)
class RayStartRequest:
    """The leader's request to start Ray."""

    address: str  # of this node
    head: str | None  # the head's address; None: this node is the head
    rank: int  # in the cycle


@dataclass(frozen=True)
class RayPaths:
    """Directories of one node's Ray."""

    temp: str  # prefix of Ray's temporary directories
    archive: str  # of the logs afterwards, without suffix


class RayNode:
    """Owns Ray's processes, ports and directories on this node."""

    def __init__(
        self, options: RayOptions, facts: NodeFacts, paths: RayPaths, env: dict[str, str], token: bytes
    ) -> None:
        self._options, self._facts, self._token = options, facts, token
        self._env = {**env, NODE_TYPE_VARIABLE: node_type(facts)}
        self._temp, self._archive = paths.temp, paths.archive
        self._attempt: StartAttempt | None = None
        self._request: asyncio.Future[RayStartRequest] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._share: ResourceShare
        self._nvlink_domain: asyncio.Future[str | None]
        self.on_alive: Callable[[list[int]], None] = lambda node_indexes: None
        self.on_head: Callable[[str, int | None], None] = lambda address, dashboard: None
        self.on_started: Callable[[], None] = lambda: None  # a worker's `ray start` has returned
        self.on_note: Callable[[str], None] = lambda text: None
        self.on_failure: Callable[[str], None] = lambda reason: None

    async def warm(self) -> None:
        """Count resources (raise ResourceMismatch if there are too few), lease ports, begin importing Ray."""
        self._share = self._count_resources()
        self._nvlink_domain = asyncio.get_running_loop().run_in_executor(None, probe_nvlink_domain, self._env)
        self._attempt = await self._new_attempt(0)
        self._task = asyncio.create_task(self._run_attempts(self._attempt))
        self._task.add_done_callback(self._on_task_done)

    def _count_resources(self) -> ResourceShare:
        """Return this node's share of the step's resources. Local runs declare GPUs and divide CPUs beforehand."""
        options, found = self._options, resources.probe(os.environ)
        if options.local:
            found = replace(found, gpus=None, confined=False)
        parts = options.nodes if options.local else 1
        share = resources.share(found, options.cpus, options.gpus, options.store, parts)
        for warning in [*warnings(share.cpus), resources.object_store_warning(found, share)]:
            if warning is not None:
                self.on_note(warning)
        return share

    def _on_task_done(self, work: asyncio.Task[None]) -> None:
        """Report a defect at once, instead of waiting for the deadline."""
        if not work.cancelled() and work.exception() is not None:
            self.on_failure(f"starting Ray failed: {work.exception()!r}")

    def _check_version(self, version: str) -> str | None:
        """Return why this release of Ray cannot be used: it has no tokens, and they are required."""
        if tuple(map(int, version.split(".")[:2])) >= TOKENS_SINCE:
            return None
        lacks = f"Ray {version} does not support tokens (2.52 and newer do)"
        if self._options.require_auth:
            return f"{lacks}, and --require-auth requires them"
        if self._facts.head:  # once, not from every node
            self.on_note(f"{lacks}: every user who can reach this cluster can use it; --require-auth would refuse it")
        return None

    def start(self, request: RayStartRequest) -> None:
        self._request.set_result(request)

    async def _new_attempt(self, number: int) -> StartAttempt:
        temp = f"{self._temp}.{number}"
        size = settings.block_size(self._options)
        smallest = settings.smallest_block(self._options, self._share.cpus)
        held = take_block(temp, size, settings.pinned_base(self._options, self._facts.node_index or 0), smallest)
        if warning := held.warning():
            self.on_note(f"Ray: {warning}")
        tuning = defaults(self._options.nodes, self._options.large_from)
        env = settings.environment(self._env, StartAttempt.token_file(temp), tuning)
        attempt = StartAttempt(temp, self._token, env, held)
        attempt.on_alive = lambda node_indexes: self.on_alive(node_indexes)
        attempt.on_version = self._check_version
        try:
            await attempt.warm()
        except BaseException:
            await attempt.stop(None)
            raise
        return attempt

    async def _run_attempts(self, attempt: StartAttempt) -> None:
        """Start Ray, retry with fresh state if that may help, and watch it until it fails or is stopped."""
        reasons: list[str] = []
        while True:
            waiting: list[asyncio.Future[Any]] = [self._request, attempt.failed]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not attempt.failed.done():
                request = self._request.result()
                facts = replace(self._facts, nvlink_domain=await self._nvlink_domain, rank=request.rank)
                self._start(attempt, request, facts)
            failure = await attempt.failed
            reasons.append(failure.reason)
            if attempt.started.done() or attempt.joined or failure.final or len(reasons) == START_ATTEMPTS:
                break
            self.on_note(f"{failure.reason}; try {len(reasons) + 1} of {START_ATTEMPTS} follows")
            collection = LogCollection(True, group_delay(self._facts.rank), FAILED_START_LOGS_S)
            await attempt.stop(self._archive_options(f".try{len(reasons)}", collection))
            await asyncio.sleep(START_BACKOFF_S * 2 ** (len(reasons) - 1))
            try:
                self._attempt = attempt = await self._new_attempt(len(reasons))
            except (OSError, SpawnError) as error:
                reasons.append(str(error))
                break
        self.on_failure(reasons[-1] if len(reasons) == 1 else f"{reasons[-1]} (try {len(reasons)} of {START_ATTEMPTS})")

    def _start(self, attempt: StartAttempt, request: RayStartRequest, facts: NodeFacts) -> None:
        runs_tasks = self._options.runs_tasks(facts.rank)
        args = settings.start_arguments(facts, self._share, runs_tasks, request.address, attempt.temp)
        args += attempt.ports.arguments()
        if request.head is None:
            gcs: list[Any] = [request.address, attempt.ports.gcs]
            attempt.start(settings.head_arguments(self._options, attempt.ports) + args, gcs, self._options.nodes)
            dashboard = attempt.ports.dashboard if self._options.dashboard else None
            self.on_head(settings.join_address(request.address, attempt.ports.gcs), dashboard)
        else:
            attempt.started.add_done_callback(lambda _: self.on_started())
            attempt.start([f"--address={request.head}", *args], None, self._options.nodes)

    def _archive_options(self, suffix: str, ending: LogCollection) -> ArchiveOptions | None:
        """Return how to archive logs; those of a failed attempt explain delays even if the run succeeds later."""
        if ending.seconds <= 0 or not should_keep(self._options.logs, ending.failed):
            return None
        return ArchiveOptions(self._archive + suffix, self._options.logs_max, ending.after, ending.seconds)

    async def stop(self, ending: LogCollection) -> None:
        """End Ray's processes, archive the logs if wanted, remove its directories and release its ports."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._attempt is not None:
            await self._attempt.stop(self._archive_options("", ending))
        with contextlib.suppress(OSError):  # another virtual node of this machine may still use it
            os.rmdir(os.path.dirname(self._temp))
