"""What a supervisor does with its processes when the lease expires: at once, or after it was stopped itself."""

from __future__ import annotations

from muster.election.timing import CLOCK_DRIFT_S, FENCE_S, LEASE_KILL_S
from muster.process.lease_enforcer import RESUME_GRACE_S, LeaseAction, LeaseEnforcer

RESUME_SKEW_S = 1.5  # between the first and the last node of a job that is resumed


def running_enforcer(until: float = 10.0) -> LeaseEnforcer:
    """Return an enforcer that has run until this time, under a lease."""
    enforcer = LeaseEnforcer()
    for tenth in range(int(until * 2) + 1):
        assert enforcer.check(tenth / 2, expired=False, fenced=False) is LeaseAction.NONE
    return enforcer


def held_enforcer() -> LeaseEnforcer:
    """Return an enforcer that was stopped from 10 to 70 and found the lease expired."""
    enforcer = running_enforcer()
    assert enforcer.check(70.0, expired=True, fenced=False) is LeaseAction.STOP
    return enforcer


def test_a_lease_that_expires_while_the_supervisor_runs_kills_at_once() -> None:
    enforcer = running_enforcer()
    assert enforcer.check(10.4, expired=True, fenced=False) is LeaseAction.KILL


def test_a_supervisor_that_was_stopped_stops_its_processes_first() -> None:
    assert held_enforcer().check(70.1, expired=True, fenced=False) is LeaseAction.STOP


def test_a_renewed_lease_continues_the_processes_once() -> None:
    enforcer = held_enforcer()
    assert enforcer.check(71.0, expired=False, fenced=False) is LeaseAction.CONTINUE
    assert enforcer.check(71.1, expired=False, fenced=False) is LeaseAction.NONE
    for tenth in range(int(RESUME_GRACE_S * 10)):
        enforcer.check(71.1 + tenth / 10, expired=False, fenced=False)
    assert enforcer.check(71.0 + RESUME_GRACE_S, expired=False, fenced=False) is LeaseAction.NONE
    assert enforcer.check(71.4 + RESUME_GRACE_S, expired=True, fenced=False) is LeaseAction.KILL


def test_without_a_renewal_the_processes_are_killed_and_never_continued() -> None:
    enforcer = held_enforcer()
    for tenth in range(int(RESUME_GRACE_S * 10)):
        assert enforcer.check(70.0 + tenth / 10, expired=True, fenced=False) is LeaseAction.STOP
    assert enforcer.check(70.0 + RESUME_GRACE_S, expired=True, fenced=False) is LeaseAction.KILL
    assert enforcer.check(78.0, expired=False, fenced=False) is LeaseAction.KILL


def test_the_grace_begins_again_after_a_second_stop() -> None:
    enforcer = held_enforcer()
    assert enforcer.check(100.0, expired=True, fenced=False) is LeaseAction.STOP
    assert enforcer.check(101.0, expired=False, fenced=False) is LeaseAction.CONTINUE


def test_processes_are_killed_at_once_if_another_supervisor_has_killed_its_own() -> None:
    enforcer = running_enforcer()
    assert enforcer.check(70.0, expired=True, fenced=True) is LeaseAction.KILL


def test_a_lease_that_expires_right_after_a_stop_gets_the_same_time() -> None:
    enforcer = running_enforcer()
    assert enforcer.check(18.0, expired=False, fenced=False) is LeaseAction.NONE
    assert enforcer.check(18.5, expired=True, fenced=False) is LeaseAction.STOP
    assert enforcer.check(18.6, expired=False, fenced=False) is LeaseAction.CONTINUE


def test_a_stop_within_the_lease_changes_nothing() -> None:
    assert running_enforcer().check(16.0, expired=False, fenced=False) is LeaseAction.NONE


def test_a_supervisor_that_starts_under_an_expired_lease_waits_for_its_renewal() -> None:
    enforcer = LeaseEnforcer()
    assert enforcer.check(5.0, expired=True, fenced=False) is LeaseAction.STOP
    assert enforcer.check(5.5, expired=False, fenced=False) is LeaseAction.CONTINUE


def test_processes_are_dead_before_their_node_counts_as_silent_after_a_resume() -> None:
    assert RESUME_SKEW_S + RESUME_GRACE_S + LEASE_KILL_S + CLOCK_DRIFT_S <= FENCE_S
