"""The supervision of one replica without Ray: whatever happens in its thread becomes a state and an event."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

ray = pytest.importorskip("ray")

from muster.placement.errors import PlacementError, SubprocessError
from muster.placement.planning.planner import PlacedReplica
from muster.placement.planning.request import PACK, Shape
from muster.placement.runtime import replica as module
from muster.placement.runtime.lease import NameLease
from muster.placement.runtime.managed import ManagedSubprocess
from muster.placement.runtime.replica import Event, Replica, ReplicaProgram
from muster.placement.runtime.restart_policy import Policy

DEADLINE_S = 120.0
PLACED = PlacedReplica("m", 0, Shape(1, {"CPU": 1}, PACK), ("n0",))


class OurLease(NameLease):
    """A lease that is ours until it is lost, without Ray's store."""

    def __init__(self) -> None:
        super().__init__("server", 1)
        self.ours: Callable[[], bool] = lambda: True

    def is_ours(self) -> bool:
        return self.ours()


class Supervised(Replica):
    """A replica whose start and failures a test provides; parts are only counted."""

    def __init__(self, max_restarts: int = 3, on_event: Callable[[Event], None] = lambda event: None) -> None:
        self.seen: queue.Queue[Event] = queue.Queue()
        self.our_lease = OurLease()
        self.starts: list[BaseException | None] = []  # the error of each start; a start beyond the list succeeds
        self.failures: queue.Queue[BaseException] = queue.Queue()  # of the running replica
        self.stops = 0

        def record(event: Event) -> None:
            self.seen.put(event)
            on_event(event)

        program = ReplicaProgram(command=["x"], policy=Policy(max_restarts=max_restarts, backoff=0.0))
        super().__init__(program, self.our_lease, 4, PLACED, cast(Any, None), record, lambda lost: cast(Any, None))

    def _start(self) -> None:
        error = self.starts.pop(0) if self.starts else None
        if error is not None:
            raise error

    def _wait_for_failure(self) -> SubprocessError:
        error = self.failures.get(timeout=DEADLINE_S)
        if isinstance(error, SubprocessError):
            return error
        raise error

    def _stop_parts(self) -> None:
        self.stops += 1

    def states(self, *expected: str) -> list[Event]:
        """Wait for as many events and check their states."""
        events = [self.seen.get(timeout=DEADLINE_S) for _ in expected]
        assert [event.state for event in events] == list(expected)
        return events

    def ended(self) -> bool:
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        return not self._thread.is_alive() and self.seen.empty()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_failed_first_start_is_final() -> None:
    replica = Supervised()
    replica.starts = [SubprocessError("no weights")]
    replica.begin()
    (event,) = replica.states("failed")
    assert event.detail == "no weights" and str(event) == "replica 4 is failed: no weights"
    assert replica.ended() and replica.budget.restarts == 0 and replica.stops == 1


def test_each_failure_of_a_ready_replica_costs_one_restart_until_the_budget_is_used_up() -> None:
    replica = Supervised(max_restarts=2)
    replica.starts = [None, PlacementError("no room"), None]
    replica.begin()
    replica.states("ready")
    replica.failures.put(SubprocessError("ended"))
    first, _, second, _, _ = replica.states("restarting", "starting", "restarting", "starting", "ready")
    assert (first.detail, second.detail) == ("in 0 s, after: ended", "in 0 s, after: no room")
    assert replica.budget.restarts == 2
    replica.failures.put(SubprocessError("ended again"))
    replica.states("failed")
    assert replica.ended() and str(replica.error) == "ended again" and replica.stops == 3


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), RuntimeError("no node"), KeyError("x")])
def test_an_unexpected_error_of_the_first_start_fails_the_replica(error: Exception) -> None:
    replica = Supervised()
    replica.starts = [error]
    replica.begin()
    (event,) = replica.states("failed")
    assert event.detail == f"replica 4: {type(error).__name__}: {error}"
    assert replica.ended() and isinstance(replica.error, SubprocessError)


def test_an_unexpected_error_of_a_running_replica_is_a_failure_like_any_other() -> None:
    replica = Supervised(max_restarts=1)
    replica.begin()
    replica.states("ready")
    replica.failures.put(OSError("connection lost"))
    events = replica.states("restarting", "starting", "ready")
    assert events[0].detail == "in 0 s, after: replica 4: OSError: connection lost"
    replica.failures.put(ray.exceptions.RaySystemError("gone"))
    (event,) = replica.states("failed")
    assert "replica 4: Ray failed: " in event.detail and replica.ended()


def test_an_error_between_two_starts_fails_the_replica() -> None:
    """The lease cannot be read: whether the replica may be restarted is unknown."""
    replica = Supervised()

    def unreadable() -> bool:
        raise ConnectionError("no store")

    replica.begin()
    replica.states("ready")
    replica.our_lease.ours = unreadable
    replica.failures.put(SubprocessError("ended"))
    (event,) = replica.states("failed")
    assert event.detail == "replica 4: ConnectionError: no store" and replica.ended()
    assert replica.state == "failed" and replica.endpoint is None


def test_an_exit_of_the_event_callback_fails_the_replica() -> None:
    def leave(event: Event) -> None:
        if event.state == "ready":
            raise SystemExit(3)

    replica = Supervised(on_event=leave)
    replica.begin()
    (_, event) = replica.states("ready", "failed")
    assert event.detail == "replica 4: SystemExit: 3" and replica.ended() and replica.stops == 1


def test_after_a_takeover_nothing_is_restarted() -> None:
    replica = Supervised()
    replica.begin()
    replica.states("ready")
    replica.our_lease.ours = lambda: False
    replica.failures.put(SubprocessError("ended"))
    (event,) = replica.states("stopped")
    assert event.detail == "another process has claimed the server's name" and replica.ended()


def test_a_stop_ends_the_supervision_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[object] = []
    monkeypatch.setattr(module, "remove_groups", removed.extend)
    replica = Supervised()
    replica.begin()
    replica.states("ready")
    assert replica.request_stop() == [] and replica.stop_requested
    replica.failures.put(SubprocessError("ended by the stop"))
    replica.finish()
    assert replica.ended() and replica.state == "stopped" and removed == [None]


def test_a_stop_during_the_pause_is_not_delayed_by_it() -> None:
    replica = Supervised()
    replica.budget.policy = Policy(backoff=3600.0, max_backoff=3600.0)
    replica.begin()
    replica.states("ready")
    replica.failures.put(SubprocessError("ended"))
    replica.states("restarting")
    replica.request_stop()
    assert replica.ended()


def test_the_endpoint_is_that_of_the_first_part_while_the_replica_is_ready() -> None:
    replica = Supervised()
    replica.parts = [
        ManagedSubprocess("a", None, facts={"address": "10.0.0.1", "port": "8000"}),
        ManagedSubprocess("b", None, facts={"address": "10.0.0.2", "port": "8000"}),
    ]
    assert replica.endpoint is None
    replica.state = "ready"
    assert replica.endpoint == ("10.0.0.1", 8000)
    replica.parts[0].facts.pop("port")
    assert replica.endpoint is None


def test_an_error_names_the_part_only_if_there_are_several() -> None:
    replica = Supervised()
    replica.parts = [ManagedSubprocess("a", None, facts={"host": "n1", "pid": 7})]
    assert str(replica._error(0, "ended", {"exit": "exited with 3"})) == (
        "replica 4: ended (host n1, pid 7, exit exited with 3)"
    )
    replica.parts.append(ManagedSubprocess("b", None, facts={"host": "n2"}))
    assert str(replica._error(1, "ended", {})) == "replica 4, part 1: ended (host n2)"


def test_a_replica_that_failed_for_good_is_not_supervised_again() -> None:
    replica = Supervised()
    replica.starts = [SubprocessError("no weights")]
    replica.begin()
    replica.states("failed")
    assert replica.ended()
    replica.attach()
    assert replica.ended() and replica.state == "failed"
