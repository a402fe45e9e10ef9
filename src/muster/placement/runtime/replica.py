"""One replica: its programs on their nodes are started, supervised, stopped and restarted together.

A replica on several nodes is one distributed program: if a part of it fails, all parts are restarted.

    state       leaves on                                                   to
    starting    every part is ready                                         ready
    starting    a part ended, or the timeout: it was never ready            failed
    starting    a part ended, or the timeout: it was ready before           restarting | failed (budget used up)
    ready       a part ended, or fails its probes                           restarting | failed (budget used up)
    restarting  the pause is over                                           starting
    (any)       stop, or another process has claimed the server's name      stopped
    (any)       the supervision itself fails                                failed
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from muster.placement.errors import PlacementError, SubprocessError
from muster.placement.planning.cluster import GPU
from muster.placement.planning.planner import PlacedReplica
from muster.placement.runtime.bundles import get_bundle_node_ip
from muster.placement.runtime.groups import remove_groups
from muster.placement.runtime.health import ENDED, FAILING, NONE, READY, Probe
from muster.placement.runtime.lease import NameLease
from muster.placement.runtime.managed import ManagedSubprocess
from muster.placement.runtime.names import NAMESPACE, Name
from muster.placement.runtime.restart_policy import Budget, Policy
from muster.placement.runtime.start_wait import StartWait

LOG = logging.getLogger("muster.placement")
STARTING, RESTARTING, FAILED, STOPPED = "starting", "restarting", "failed", "stopped"
REPORT_TIMEOUT_S = 2.0  # of one call for a part's health: Ray does not stop an actor gracefully while a method runs


@dataclass(frozen=True)
class ReplicaProgram:
    """The program of each replica, and how it is probed, restarted and stopped."""

    command: Sequence[str] | None = None
    python_args: Sequence[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    probe: Probe = field(default_factory=Probe)
    policy: Policy = field(default_factory=Policy)
    runtime_dir: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    grace: float = 10.0  # seconds between SIGTERM and SIGKILL
    endpoint: str | None = None  # of the run, behind which the replicas are
    drain: float = 60.0  # seconds for requests of this endpoint, before a replica is stopped
    detached: bool = False


@dataclass(frozen=True)
class Event:
    """A change of a replica's state."""

    time: float
    replica: int
    state: str
    detail: str = ""

    def __str__(self) -> str:
        return f"replica {self.replica} is {self.state}" + (f": {self.detail}" if self.detail else "")


class Replica:
    """A replica, supervised by a thread."""

    def __init__(
        self,
        program: ReplicaProgram,
        lease: NameLease,
        number: int,
        placed: PlacedReplica,
        group: PlacementGroup,
        on_event: Callable[[Event], None],
        place_again: Callable[[Replica], tuple[PlacedReplica, PlacementGroup]],
    ) -> None:
        self.program, self.lease, self.number = program, lease, number
        self.placed, self.group = placed, group
        self.state = STARTING
        self.error: SubprocessError | PlacementError | None = None
        self.parts: list[ManagedSubprocess] = []
        self.budget = Budget(program.policy)
        self._on_event, self._place_again = on_event, place_again
        self._stopping = threading.Event()
        self._parts_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the replica and its supervision."""
        self._start_thread(was_ready=False)

    def _start_thread(self, was_ready: bool) -> None:
        self._stopping.clear()
        name = f"{self.lease.server}-{self.number}"
        self._thread = threading.Thread(target=self._run, args=(was_ready,), name=name, daemon=True)
        self._thread.start()

    @property
    def stop_requested(self) -> bool:
        return self._stopping.is_set()

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Address and port while the replica is ready."""
        if self.state != READY or not self.parts or "port" not in self.parts[0].facts:
            return None
        return self.parts[0].facts["address"], int(self.parts[0].facts["port"])

    # -- supervision ------------------------------------------------------------------------------------------------

    def _run(self, was_ready: bool) -> None:
        """Supervise the replica; it fails if the supervision does, since nothing would notice its end any more."""
        try:
            self._supervise(was_ready)
        except BaseException as error:  # also SystemExit of the caller's on_event: a thread's errors reach no caller
            self.error = self._unexpected(error)
            with contextlib.suppress(Exception):
                self._stop_parts()
            self._set_state(FAILED, str(self.error))

    def _supervise(self, was_ready: bool) -> None:
        """Start and restart the replica until it is stopped or has failed for good."""
        running = was_ready
        while True:
            try:
                if not running:
                    self._start()
                    self._set_state(READY)
                was_ready, running = True, False
                raise self._wait_for_failure()
            except (SubprocessError, PlacementError) as error:
                self.error = error
            except RayError as error:
                self.error = SubprocessError(f"replica {self.number}: Ray failed: {error}")
            except _Stopped:
                return
            except Exception as error:  # such as a TypeError of Ray for an invalid runtime_env
                self.error = self._unexpected(error)
            self.state = RESTARTING  # its endpoint is not listed any more
            pause = self.budget.spend(time.monotonic()) if was_ready else None
            self._stop_parts()
            if self._is_over():
                return
            if pause is None:
                self._set_state(FAILED, str(self.error))
                return
            self._set_state(RESTARTING, f"in {pause:g} s, after: {self.error}")
            if self._stopping.wait(pause) or self._is_over():
                return
            self._set_state(STARTING)

    def _unexpected(self, error: BaseException) -> SubprocessError:
        LOG.error("replica %d of %s: unexpected error", self.number, self.lease.server, exc_info=error)
        return SubprocessError(f"replica {self.number}: {type(error).__name__}: {error}")

    def _is_over(self) -> bool:
        """Return whether the replica must not be restarted; after a takeover the new owner stops its programs."""
        if not self._stopping.is_set() and not self.lease.is_ours():
            self._set_state(STOPPED, "another process has claimed the server's name")
            return True
        return self._stopping.is_set()

    def _set_state(self, state: str, detail: str = "") -> None:
        self.state = state
        self._on_event(Event(time.time(), self.number, state, detail))

    # -- start ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start all parts, the first one before the others, which need its ports; return when all are ready."""
        deadline = time.monotonic() + self.program.policy.start_timeout
        if not self._nodes_are_alive():
            remove_groups([self.group])
            self.placed, self.group = self._place_again(self)
        count = len(self.placed.nodes)
        shared = {"replica": str(self.number), "nnodes": str(count), "master_addr": get_bundle_node_ip(self.group, 0)}
        first = self._spawn(0, shared, self.program.probe)
        shared |= {name: str(first.facts[name]) for name in ("port", "master_port") if name in first.facts}
        for rank in range(1, count):
            self._spawn(rank, shared, Probe(NONE))
        self._wait_until_ready(deadline)

    def _spawn(self, rank: int, substitutes: Mapping[str, str], probe: Probe) -> ManagedSubprocess:
        program = self.program
        name = Name(self.lease.server, self.lease.term, self.number, rank)
        part = ManagedSubprocess.spawn(
            str(name).replace("/", "-"),
            self.group,
            rank,
            num_gpus=int(self.placed.shape.bundle.get(GPU, 0)),
            command=program.command,
            python_args=program.python_args,
            runtime_dir=program.runtime_dir,
            subprocess_env=program.env,
            runtime_env=program.runtime_env,
            name=str(name),
            namespace=NAMESPACE,
            detached=program.detached,
            substitutes={**substitutes, "rank": str(rank)},
            probe=probe,
        )
        with self._parts_lock:
            self.parts.append(part)
        if self._stopping.is_set():  # request_stop may not have seen this part
            self._stop_parts()
            raise _Stopped
        return part

    def _nodes_are_alive(self) -> bool:
        live = {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call, unused-ignore]
        return set(self.placed.nodes) <= live

    def _wait_until_ready(self, deadline: float) -> None:
        wait = StartWait(len(self.parts), deadline - self.program.policy.start_timeout)
        for rank, report in self._reports(deadline):
            now = time.monotonic()
            wait.observe(rank, report["state"], report["detail"], now)
            if report["state"] == ENDED:
                raise self._error(rank, "ended before it was ready", report)
            if not wait.late:
                return
            if (hopeless := wait.hopeless(now)) is not None:
                raise self._late_error(hopeless[0], f"is not ready: {hopeless[1]}", report)
            if now >= deadline:
                why = f"is not ready after {self.program.policy.start_timeout:g} s: {report['detail']}"
                raise self._late_error(wait.late[0], why, report)
            if (text := wait.report(now)) is not None:
                self._on_event(Event(time.time(), self.number, STARTING, text))

    def _late_error(self, rank: int, why: str, report: Mapping[str, Any]) -> SubprocessError:
        return self._error(rank, why, {**report, "log_tail": self.parts[rank].read_log_tail()})

    # -- health -----------------------------------------------------------------------------------------------------

    def _wait_for_failure(self) -> SubprocessError:
        """Wait until a part fails, and return the error."""
        for rank, report in self._reports(None):
            if report["state"] == ENDED:
                return self._error(rank, "ended", report)
            if report["state"] == FAILING:
                report["log_tail"] = self.parts[rank].read_log_tail()
                return self._error(rank, f"does not answer its probes any more: {report['detail']}", report)
        raise _Stopped

    def _reports(self, deadline: float | None) -> Any:
        """Yield (rank, report) for each change of a part, or after a while the same report again."""
        seen = dict.fromkeys(range(len(self.parts)), -1)
        asked: dict[Any, int] = {}
        while not self._stopping.is_set():
            for rank in seen.keys() - asked.values():
                left = math.inf if deadline is None else deadline - time.monotonic()
                timeout = min(REPORT_TIMEOUT_S, max(0.1, left))
                asked[self.parts[rank].actor.report.remote(seen[rank], timeout)] = rank
            (ref,), _ = ray.wait(list(asked), num_returns=1)
            rank = asked.pop(ref)
            try:
                report: dict[str, Any] = ray.get(ref)
            except RayError as error:
                tail = {"log_tail": self.parts[rank].read_log_tail_on_node()}
                raise self._error(rank, f"its actor is gone: {error}".splitlines()[0], tail) from error
            seen[rank] = report["version"]
            if not self._stopping.is_set():
                yield rank, report
        raise _Stopped

    def _error(self, rank: int, message: str, report: Mapping[str, Any]) -> SubprocessError:
        facts = {**self.parts[rank].facts, **report}
        wanted = ("host", "pid", "exit", "exit_code", "log_file", "log_tail")
        which = f"replica {self.number}" + (f", part {rank}" if len(self.parts) > 1 else "")
        return SubprocessError(f"{which}: {message}", {name: facts.get(name) for name in wanted})

    # -- stop -------------------------------------------------------------------------------------------------------

    def request_stop(self) -> list[ManagedSubprocess]:
        """Start nothing more; return the running parts, which the caller stops with those of other replicas."""
        self._stopping.set()
        with self._parts_lock:
            return list(self.parts)

    def finish(self) -> None:
        """Clean up after the parts have been stopped."""
        self.detach()
        self._stop_parts()
        remove_groups([self.group])
        self.state = STOPPED

    def detach(self) -> None:
        """End the supervision; the programs continue."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def attach(self) -> None:
        """Supervise the replica again, over another connection to Ray. Parts that are gone count as failed."""
        if self.state in (FAILED, STOPPED):
            return
        for part in self.parts:
            with contextlib.suppress(ValueError):
                part.reacquire(ray.get_actor(part.name, namespace=NAMESPACE))
        self._start_thread(was_ready=self.state == READY)

    def _stop_parts(self) -> None:
        with self._parts_lock:
            parts, self.parts = self.parts, []
        ManagedSubprocess.stop_many(parts, timeout_s=self.program.grace)


class _Stopped(Exception):
    """A stop was requested."""
