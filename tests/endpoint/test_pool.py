"""Which replica a request goes to."""

from __future__ import annotations

from collections import Counter

import pytest

from muster.endpoint.pool import (
    DRAINING,
    FAILED_CHECKS_MAX,
    JOINING,
    LEAVING,
    READY,
    REFUSED_RESPONSES_MAX,
    UNHEALTHY,
    HealthResult,
    PoolReplica,
    ReplicaPool,
    ReplicaWish,
    VersionRange,
)

OK, FAILED = HealthResult(True), HealthResult(False, "no answer")


def pool_of(count: int, **result: object) -> ReplicaPool:
    pool = ReplicaPool()
    for replica in pool.set_members(f"http://10.0.0.{number}:7000" for number in range(count)):
        replica.apply_check(HealthResult(True, **result))  # type: ignore[arg-type]
    return pool


def chosen(pool: ReplicaPool, **wish: object) -> PoolReplica:
    found = pool.choose(ReplicaWish(**wish))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_equally_loaded_replicas_get_requests_in_turn() -> None:
    pool = pool_of(4)
    assert Counter(chosen(pool).url for _ in range(40)) == dict.fromkeys(pool.replicas, 10)


def test_the_replica_with_the_fewest_outstanding_requests_is_chosen() -> None:
    pool = pool_of(3)
    for _ in range(6):
        pool.begin(chosen(pool))
    assert [replica.outstanding for replica in pool.replicas.values()] == [2, 2, 2]
    free = list(pool.replicas.values())[1]
    pool.end(free)
    assert chosen(pool) is free


def test_a_replica_gets_requests_only_after_its_first_check() -> None:
    pool = ReplicaPool()
    (replica,) = pool.set_members(["http://a:1"])
    assert (replica.state, pool.choose(ReplicaWish())) == (JOINING, None)
    replica.apply_check(OK)
    assert (replica.state, chosen(pool)) == (READY, replica)


def test_one_missed_check_is_forgiven_and_a_success_brings_a_replica_back() -> None:
    pool = pool_of(1)
    replica = chosen(pool)
    for number in range(FAILED_CHECKS_MAX):
        assert replica.state == READY, number
        replica.apply_check(FAILED)
    assert (replica.state, replica.reason) == (UNHEALTHY, "no answer") and pool.choose(ReplicaWish()) is None
    replica.apply_check(OK)
    assert (replica.state, replica.reason) == (READY, "")


def test_a_replica_that_refuses_several_requests_in_a_row_is_unhealthy() -> None:
    replica = chosen(pool_of(1))
    for status in [*[503] * (REFUSED_RESPONSES_MAX - 1), 500, *[502] * (REFUSED_RESPONSES_MAX - 1)]:
        assert replica.apply_status(status)
    assert not replica.apply_status(504) and replica.state == UNHEALTHY


def test_a_replica_that_reports_that_it_is_draining_gets_nothing_new() -> None:
    pool = pool_of(2)
    first, second = pool.replicas.values()
    first.apply_check(HealthResult(False, "status 503", is_draining=True))
    assert first.state == DRAINING and {chosen(pool).url for _ in range(4)} == {second.url}


def test_a_replica_that_left_is_kept_until_its_last_request_has_ended() -> None:
    pool = pool_of(2)
    first, second = pool.replicas.values()
    pool.begin(first)
    assert pool.set_members([second.url]) == []
    assert first.state == LEAVING and not pool.is_drained and {chosen(pool).url for _ in range(4)} == {second.url}
    first.apply_check(OK)
    first.fail("its connection was lost")
    assert first.state == LEAVING
    pool.end(first)
    assert pool.is_drained and list(pool.replicas) == [second.url]


def test_a_replica_that_returns_before_it_has_drained_is_checked_again() -> None:
    pool = pool_of(1)
    replica = chosen(pool)
    pool.begin(replica)
    pool.set_members([])
    assert pool.set_members([replica.url]) == [replica] and replica.state == JOINING


def test_requests_with_the_same_key_stay_together_and_move_only_if_their_replica_goes() -> None:
    pool = pool_of(5)
    keys = [f"session-{number}".encode() for number in range(200)]
    before = {key: chosen(pool, key=key).url for key in keys}
    assert before == {key: chosen(pool, key=key).url for key in keys}
    assert all(count > 20 for count in Counter(before.values()).values())
    gone, *others = pool.replicas
    pool.set_members(others)
    assert all(chosen(pool, key=key).url == url for key, url in before.items() if url != gone)


def test_a_cookie_returns_to_its_replica_while_that_is_eligible() -> None:
    pool = pool_of(3)
    mine = list(pool.replicas.values())[2]
    for _ in range(3):
        pool.begin(mine)
    assert chosen(pool, replica_id=mine.id) is mine
    mine.fail("gone")
    assert chosen(pool, replica_id=mine.id) is not mine


def test_a_request_may_require_a_version_of_the_weights() -> None:
    pool = pool_of(3)
    for number, replica in enumerate(pool.replicas.values()):
        replica.apply_check(HealthResult(True, weights_version=str(9 + number)))
    urls = list(pool.replicas)
    assert chosen(pool, versions=VersionRange.parse("10")).url == urls[1]
    assert {chosen(pool, versions=VersionRange.parse(">=10")).url for _ in range(4)} == set(urls[1:])
    assert pool.choose(ReplicaWish(versions=VersionRange.parse("12"))) is None


@pytest.mark.parametrize("text", ["", ">=", ">=x", "  "])
def test_a_version_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a version nor"):
        VersionRange.parse(text)


def test_a_replica_without_a_version_serves_no_request_that_requires_one() -> None:
    assert pool_of(1).choose(ReplicaWish(versions=VersionRange.parse(">=0"))) is None


def test_a_model_goes_to_the_replicas_that_name_it_and_an_unknown_one_to_any() -> None:
    pool = pool_of(2)
    first, second = pool.replicas.values()
    assert not pool.names_models and pool.choose(ReplicaWish(model="judge")) is not None
    first.apply_check(HealthResult(True, models=frozenset({"judge"})))
    assert {chosen(pool, model="judge").url for _ in range(4)} == {first.url}
    assert {chosen(pool, model="unknown").url for _ in range(4)} == {first.url, second.url}
    first.fail("gone")
    assert pool.choose(ReplicaWish(model="judge")) is None  # it waits for the replica, and does not go to a wrong one
