"""This node's part of Ray in the agent's hands: warmed at once, started on order, tried again with fresh state."""

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
from muster.agent.ray.ports import take_block
from muster.agent.ray.resources import ResourceShare
from muster.agent.ray.session_logs import Keep, wanted
from muster.agent.ray.settings import RayOptions
from muster.agent.ray.start_attempt import StartAttempt
from muster.agent.ray.tuning import defaults
from muster.process import SpawnError

TRIES = 3
TOKENS_SINCE = (2, 52)  # releases of Ray
BACKOFF_S = 0.5  # doubled after each try
TRY_LOGS_S = 10.0  # to keep the logs of a failed try


@dataclass(frozen=True)
class StartOrder:
    """Be the head on this address, or join the head from it, with this rank in the cycle."""

    address: str
    head: str | None
    rank: int


@dataclass(frozen=True)
class RayPaths:
    """Where Ray's files lie while it runs, and its logs afterwards (without their ending)."""

    temp: str
    archive: str


class RayNode:
    """Owns everything of Ray on this node."""

    def __init__(
        self, options: RayOptions, facts: NodeFacts, paths: RayPaths, env: dict[str, str], token: bytes
    ) -> None:
        self._options, self._facts, self._token = options, facts, token
        self._env = {**env, NODE_TYPE_VARIABLE: node_type(facts)}
        self._temp, self._archive = paths.temp, paths.archive
        self._trial: StartAttempt | None = None
        self._order: asyncio.Future[StartOrder] = asyncio.get_running_loop().create_future()
        self._work: asyncio.Task[None] | None = None
        self._share: ResourceShare
        self._domain: asyncio.Future[str | None]
        self.on_alive: Callable[[list[int]], None] = lambda ranks: None
        self.on_head: Callable[[str, int | None], None] = lambda address, dashboard: None
        self.on_started: Callable[[], None] = lambda: None  # a worker's `ray start` has returned: Ray knows it
        self.on_note: Callable[[str], None] = lambda text: None
        self.on_failure: Callable[[str], None] = lambda reason: None

    async def warm(self) -> None:
        """Count what is here (Mismatch where it is too little), take ports, begin importing Ray."""
        self._share = self._count()
        self._domain = asyncio.get_running_loop().run_in_executor(None, probe_nvlink_domain, self._env)
        self._trial = await self._new_trial(0)
        self._work = asyncio.create_task(self._try_until_up(self._trial))
        self._work.add_done_callback(self._ended)

    def _count(self) -> ResourceShare:
        """This node's part of what the step has. On one machine GPUs are declared, and CPUs divided beforehand."""
        options, found = self._options, resources.probe(os.environ)
        if options.local:
            found = replace(found, gpus=None, confined=False)
        parts = options.nodes if options.local else 1
        share = resources.share(found, options.cpus, options.gpus, options.store, parts)
        for complaint in [*warnings(share.cpus), resources.complaint(found, share)]:
            if complaint is not None:
                self.on_note(complaint)
        return share

    def _ended(self, work: asyncio.Task[None]) -> None:
        """A defect must not end in a silent wait for the deadline."""
        if not work.cancelled() and work.exception() is not None:
            self.on_failure(f"starting Ray failed: {work.exception()!r}")

    def _check_version(self, version: str) -> str | None:
        """Why this Ray cannot be used; one without tokens only where they are required."""
        if tuple(map(int, version.split(".")[:2])) >= TOKENS_SINCE:
            return None
        lacks = f"Ray {version} knows no tokens (2.52 and newer do)"
        if self._options.require_auth:
            return f"{lacks}, and --require-auth asks for them"
        if self._facts.head:  # once, not from every node
            self.on_note(f"{lacks}: this cluster is open to everybody who can reach it; --require-auth would refuse it")
        return None

    def start(self, order: StartOrder) -> None:
        self._order.set_result(order)

    async def _new_trial(self, number: int) -> StartAttempt:
        temp = f"{self._temp}.{number}"
        size = settings.block_size(self._options)
        smallest = settings.smallest_block(self._options, self._share.cpus)
        held = take_block(temp, size, settings.pinned_base(self._options, self._facts.number or 0), smallest)
        if warning := held.warning():
            self.on_note(f"Ray: {warning}")
        tuning = defaults(self._options.nodes, self._options.large_from)
        env = settings.environment(self._env, StartAttempt.token_file(temp), tuning)
        trial = StartAttempt(temp, self._token, env, held)
        trial.on_alive = lambda ranks: self.on_alive(ranks)
        trial.on_version = self._check_version
        try:
            await trial.warm()
        except BaseException:
            await trial.stop(None)
            raise
        return trial

    async def _try_until_up(self, trial: StartAttempt) -> None:
        """Start Ray, again with everything fresh where that may help; then watch it until it fails or is stopped."""
        reasons: list[str] = []
        while True:
            waiting: list[asyncio.Future[Any]] = [self._order, trial.failed]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not trial.failed.done():
                order = self._order.result()
                facts = replace(self._facts, nvlink_domain=await self._domain, rank=order.rank)
                self._start(trial, order, facts)
            failure = await trial.failed
            reasons.append(failure.reason)
            if trial.started.done() or trial.joined or failure.final or len(reasons) == TRIES:
                break
            self.on_note(f"{failure.reason}; try {len(reasons) + 1} of {TRIES} follows")
            await trial.stop(
                self._keep(f".try{len(reasons)}", LogCollection(True, group_delay(self._facts.rank), TRY_LOGS_S))
            )
            await asyncio.sleep(BACKOFF_S * 2 ** (len(reasons) - 1))
            try:
                self._trial = trial = await self._new_trial(len(reasons))
            except (OSError, SpawnError) as error:
                reasons.append(str(error))
                break
        self.on_failure(reasons[-1] if len(reasons) == 1 else f"{reasons[-1]} (try {len(reasons)} of {TRIES})")

    def _start(self, trial: StartAttempt, order: StartOrder, facts: NodeFacts) -> None:
        works = self._options.works(facts.rank)
        args = settings.start_arguments(facts, self._share, works, order.address, trial.temp)
        args += trial.ports.arguments()
        if order.head is None:
            gcs: list[Any] = [order.address, trial.ports.gcs]
            trial.start(settings.head_arguments(self._options, trial.ports) + args, gcs, self._options.nodes)
            dashboard = trial.ports.dashboard if self._options.dashboard else None
            self.on_head(settings.join_address(order.address, trial.ports.gcs), dashboard)
        else:
            trial.started.add_done_callback(lambda _: self.on_started())
            trial.start([f"--address={order.head}", *args], None, self._options.nodes)

    def _keep(self, suffix: str, ending: LogCollection) -> Keep | None:
        """A failed try's logs are kept even if the run succeeds later: they say why it took so long."""
        if ending.seconds <= 0 or not wanted(self._options.logs, ending.failed):
            return None
        return Keep(self._archive + suffix, self._options.logs_max, ending.after, ending.seconds)

    async def stop(self, ending: LogCollection) -> None:
        """End everything of Ray here; nothing is left of it but its logs, where they are wanted."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self._trial is not None:
            await self._trial.stop(self._keep("", ending))
        with contextlib.suppress(OSError):  # another virtual node of this machine may still use it
            os.rmdir(os.path.dirname(self._temp))
