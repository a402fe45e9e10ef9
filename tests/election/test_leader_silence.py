"""Only polls that were answered show that a run has no leader."""

from __future__ import annotations

import math

from muster.election.leader_silence import (
    LEADERLESS_AFTER_S,
    SLOW_POLL_S,
    STARTUP_SILENCE_S,
    LeaderSilence,
    LeaderVerdict,
    RunDirectoryView,
    StartupHeartbeats,
)

INTERVAL_S = 0.5
ENOUGH = math.ceil(LEADERLESS_AFTER_S / INTERVAL_S)
QUICK_S = 0.01


def view(stamp: float = 1.0, term: int = 0, claims: tuple[int, ...] = (0,), over: bool = False) -> RunDirectoryView:
    return RunDirectoryView(over, term, stamp, frozenset(claims))


def quiet(silence: LeaderSilence, polls: int) -> LeaderVerdict:
    """Make polls without news and return the last verdict."""
    verdicts = [silence.observe(view(), QUICK_S) for _ in range(polls)]
    assert set(verdicts[:-1]) <= {LeaderVerdict.UNKNOWN}
    return verdicts[-1]


def test_a_run_is_leaderless_after_enough_consecutive_polls_without_news() -> None:
    silence = LeaderSilence(INTERVAL_S)
    assert quiet(silence, ENOUGH) is LeaderVerdict.UNKNOWN  # the first poll has nothing to compare with
    assert quiet(silence, 1) is LeaderVerdict.LEADERLESS


def test_a_poll_that_took_longer_than_any_silence_decides_nothing() -> None:
    silence = LeaderSilence(INTERVAL_S)
    assert silence.observe(view(), 10 * LEADERLESS_AFTER_S) is LeaderVerdict.UNKNOWN
    assert quiet(silence, ENOUGH - 1) is LeaderVerdict.UNKNOWN
    assert silence.observe(view(), 10 * LEADERLESS_AFTER_S) is LeaderVerdict.UNKNOWN
    assert quiet(silence, ENOUGH - 1) is LeaderVerdict.UNKNOWN
    assert quiet(silence, 1) is LeaderVerdict.LEADERLESS


def test_a_failed_or_slow_poll_restarts_the_count() -> None:
    for seen, seconds in ((None, QUICK_S), (view(), SLOW_POLL_S + 1), (view(term=-1), QUICK_S)):
        silence = LeaderSilence(INTERVAL_S)
        assert quiet(silence, ENOUGH) is LeaderVerdict.UNKNOWN
        assert silence.observe(seen, seconds) is LeaderVerdict.UNKNOWN
        assert quiet(silence, ENOUGH - 1) is LeaderVerdict.UNKNOWN
        assert quiet(silence, 1) is LeaderVerdict.LEADERLESS


def test_a_new_claim_restarts_the_count() -> None:
    silence = LeaderSilence(INTERVAL_S)
    assert quiet(silence, ENOUGH) is LeaderVerdict.UNKNOWN
    verdicts = [silence.observe(view(claims=(0, 1)), QUICK_S) for _ in range(ENOUGH + 1)]
    assert verdicts == [LeaderVerdict.UNKNOWN] * ENOUGH + [LeaderVerdict.LEADERLESS]


def test_a_publication_after_the_first_poll_shows_a_leader_however_long_the_polls_took() -> None:
    for published in (view(stamp=2.0), view(term=1)):
        silence = LeaderSilence(INTERVAL_S)
        silence.observe(view(), 10 * LEADERLESS_AFTER_S)
        assert silence.observe(published, 10 * LEADERLESS_AFTER_S) is LeaderVerdict.LED
        assert silence.observe(published, QUICK_S) is LeaderVerdict.LED


def test_a_recorded_end_is_the_end() -> None:
    assert LeaderSilence(INTERVAL_S).observe(view(over=True), 10 * LEADERLESS_AFTER_S) is LeaderVerdict.OVER


POLLS = math.ceil(STARTUP_SILENCE_S / INTERVAL_S)


def test_a_node_with_an_unchanged_heartbeat_is_gone_and_one_with_a_changing_heartbeat_is_not() -> None:
    seen = StartupHeartbeats(INTERVAL_S)
    for poll in range(POLLS + 1):
        assert seen.silent() == set()
        seen.observe({0: "3", 1: f"{poll}"}, QUICK_S)
    assert seen.silent() == {0}
    seen.observe({0: "4", 1: "x"}, QUICK_S)  # it is alive after all
    assert seen.silent() == set()


def test_a_node_without_a_heartbeat_is_not_judged() -> None:
    seen = StartupHeartbeats(INTERVAL_S)
    for _ in range(POLLS * 2):
        seen.observe({1: "3"}, QUICK_S)
    assert seen.silent() == {1}
    seen.observe({}, QUICK_S)
    assert seen.silent() == set()


def test_a_slow_poll_is_no_evidence_about_heartbeats() -> None:
    seen = StartupHeartbeats(INTERVAL_S)
    for seconds in [QUICK_S] * POLLS + [SLOW_POLL_S + 1] + [QUICK_S] * (POLLS - 1):
        seen.observe({0: "3"}, seconds)
        assert seen.silent() == set()
    seen.observe({0: "3"}, QUICK_S)
    assert seen.silent() == {0}
