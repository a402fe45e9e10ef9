"""Only looks that were answered tell that a run has no leader."""

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


def sight(stamp: float = 1.0, term: int = 0, claims: tuple[int, ...] = (0,), over: bool = False) -> RunDirectoryView:
    return RunDirectoryView(over, term, stamp, frozenset(claims))


def quiet(silence: LeaderSilence, looks: int) -> LeaderVerdict:
    """Looks that show nothing new; the last one's verdict."""
    verdicts = [silence.look(sight(), QUICK_S) for _ in range(looks)]
    assert set(verdicts[:-1]) <= {LeaderVerdict.UNKNOWN}
    return verdicts[-1]


def test_a_run_is_without_a_leader_after_enough_quiet_looks_in_a_row() -> None:
    silence = LeaderSilence(INTERVAL_S)
    assert quiet(silence, ENOUGH) is LeaderVerdict.UNKNOWN  # the first one has none to be compared with
    assert quiet(silence, 1) is LeaderVerdict.LEADERLESS


def test_a_look_that_took_longer_than_any_silence_decides_nothing() -> None:
    silence = LeaderSilence(INTERVAL_S)
    assert silence.look(sight(), 10 * LEADERLESS_AFTER_S) is LeaderVerdict.UNKNOWN
    assert quiet(silence, ENOUGH - 1) is LeaderVerdict.UNKNOWN
    assert silence.look(sight(), 10 * LEADERLESS_AFTER_S) is LeaderVerdict.UNKNOWN
    assert quiet(silence, ENOUGH - 1) is LeaderVerdict.UNKNOWN
    assert quiet(silence, 1) is LeaderVerdict.LEADERLESS


def test_a_look_that_failed_or_was_slow_starts_the_count_again() -> None:
    for seen, seconds in ((None, QUICK_S), (sight(), SLOW_POLL_S + 1), (sight(term=-1), QUICK_S)):
        silence = LeaderSilence(INTERVAL_S)
        assert quiet(silence, ENOUGH) is LeaderVerdict.UNKNOWN
        assert silence.look(seen, seconds) is LeaderVerdict.UNKNOWN
        assert quiet(silence, ENOUGH - 1) is LeaderVerdict.UNKNOWN
        assert quiet(silence, 1) is LeaderVerdict.LEADERLESS


def test_a_new_claim_starts_the_count_again() -> None:
    silence = LeaderSilence(INTERVAL_S)
    assert quiet(silence, ENOUGH) is LeaderVerdict.UNKNOWN
    verdicts = [silence.look(sight(claims=(0, 1)), QUICK_S) for _ in range(ENOUGH + 1)]
    assert verdicts == [LeaderVerdict.UNKNOWN] * ENOUGH + [LeaderVerdict.LEADERLESS]


def test_a_publication_after_the_first_look_shows_a_leader_however_long_the_looks_took() -> None:
    for published in (sight(stamp=2.0), sight(term=1)):
        silence = LeaderSilence(INTERVAL_S)
        silence.look(sight(), 10 * LEADERLESS_AFTER_S)
        assert silence.look(published, 10 * LEADERLESS_AFTER_S) is LeaderVerdict.LED
        assert silence.look(published, QUICK_S) is LeaderVerdict.LED


def test_a_recorded_end_is_the_end() -> None:
    assert LeaderSilence(INTERVAL_S).look(sight(over=True), 10 * LEADERLESS_AFTER_S) is LeaderVerdict.OVER


LOOKS = math.ceil(STARTUP_SILENCE_S / INTERVAL_S)


def test_a_heartbeat_that_stands_still_is_of_a_node_that_is_gone_and_a_moving_one_is_not() -> None:
    seen = StartupHeartbeats(INTERVAL_S)
    for look in range(LOOKS + 1):
        assert seen.silent() == set()
        seen.look({0: "3", 1: f"{look}"}, QUICK_S)
    assert seen.silent() == {0}
    seen.look({0: "4", 1: "x"}, QUICK_S)  # it comes after all
    assert seen.silent() == set()


def test_of_a_node_without_a_heartbeat_nothing_is_known() -> None:
    seen = StartupHeartbeats(INTERVAL_S)
    for _ in range(LOOKS * 2):
        seen.look({1: "3"}, QUICK_S)
    assert seen.silent() == {1}
    seen.look({}, QUICK_S)
    assert seen.silent() == set()


def test_a_slow_look_says_nothing_of_any_heartbeat() -> None:
    seen = StartupHeartbeats(INTERVAL_S)
    for seconds in [QUICK_S] * LOOKS + [SLOW_POLL_S + 1] + [QUICK_S] * (LOOKS - 1):
        seen.look({0: "3"}, seconds)
        assert seen.silent() == set()
    seen.look({0: "3"}, QUICK_S)
    assert seen.silent() == {0}
