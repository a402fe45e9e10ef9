"""The user ids of a sandbox service: ranges that fit, and leases that exclude other services."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.sandbox.serving import Served

from muster.sandbox.engine import user_ids
from muster.sandbox.engine.user_ids import USERS, NoUserIds, UserIds, first_ids

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root changes to other user ids")
WANTED = 1_400_000_000 + os.getpid() % 1000 * 200_000  # not that of another test process


def test_ranges_follow_each_other_without_overlap_below_the_last_signed_id() -> None:
    found = first_ids(1_900_000_000, [(0, 4_294_967_295)])
    assert found[0] == 1_900_000_000 and len(found) > 1000
    assert all(after - before == USERS for before, after in itertools.pairwise(found))
    assert found[-1] + USERS <= 2**31


def test_a_first_id_above_the_signed_ones_is_used_as_wanted() -> None:
    assert first_ids(3_000_000_000, [(0, 4_294_967_295)])[0] == 3_000_000_000


def test_small_containers_have_the_ranges_that_fit() -> None:
    assert first_ids(1_900_000_000, [(0, 1), (1, 65535)]) == []
    assert first_ids(1_900_000_000, [(0, 1), (1, 1_000_000)]) == [800_001, 600_001, 400_001, 200_001]


def test_the_ids_of_this_namespace_include_our_own() -> None:
    assert any(first <= os.getuid() < first + count for first, count in user_ids._ids_of_namespace())


def test_an_ordinary_user_leases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_ids.os, "getuid", lambda: 1000)
    assert UserIds(WANTED).first is None


@ROOT_ONLY
def test_services_of_a_host_have_different_ranges_until_one_ends() -> None:
    one, other = UserIds(WANTED), UserIds(WANTED)
    assert one.first is not None and other.first is not None and abs(one.first - other.first) >= USERS
    first = one.first
    one.close()
    again = UserIds(WANTED)
    assert again.first == first
    other.close()
    again.close()


@ROOT_ONLY
def test_a_process_of_an_ended_service_keeps_the_range() -> None:
    service = UserIds(WANTED)
    assert service._lease is not None
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    worker = subprocess.Popen(waiting, stdin=subprocess.PIPE, pass_fds=[service._lease.fileno()])
    service.close()
    other = UserIds(WANTED)
    assert other.first != service.first
    other.close()
    worker.communicate()


@ROOT_ONLY
def test_no_free_range_is_an_error_that_names_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_ids, "_lease", lambda first: None)
    with pytest.raises(NoUserIds, match=f"ranges of {USERS} user ids from {WANTED} on are in use by other sandboxes"):
        UserIds(WANTED)


@ROOT_ONLY
@pytest.mark.parametrize("level", ["root", "root at the floor"])
def test_programs_of_two_services_do_not_count_against_each_other(own: Callable[..., Served], level: str) -> None:
    services = [own(level, processes=16, workers_min=1, workers_max=1) for _ in range(2)]
    users = {service.out("import os; print(os.getuid())") for service in services}
    assert len(users) == 2 and "0\n" not in users
