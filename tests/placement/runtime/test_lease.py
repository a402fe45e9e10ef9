"""The lease of a server's name: in the store of a real Ray cluster, and its rules with a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    pass

ray = pytest.importorskip("ray")

from muster.placement.errors import OwnedElsewhere
from muster.placement.runtime import lease
from muster.placement.runtime.lease import NameLease, last_term, owner_of
from muster.placement.runtime.owner import Owner


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_of_many_concurrent_claims_of_a_name_one_succeeds() -> None:
    def claim(_: int) -> NameLease | None:
        try:
            return NameLease.acquire("contended")
        except OwnedElsewhere:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [claimed for claimed in pool.map(claim, range(8)) if claimed is not None]
    assert [claimed.term for claimed in won] == [1] and won[0].is_ours()
    taken = NameLease.acquire("contended", takeover=True)
    assert taken.term == 2 and not won[0].is_ours()
    taken.release()
    assert NameLease.acquire("contended").term == 3


# -- rules, without Ray ---------------------------------------------------------------------------------------------

OWNER = Owner("node", "n1", 7, 2, "pid:[3]", 0.0)


class StoreInMemory:
    """Ray's key-value store, and whether owners are alive."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.alive: bool | None = True
        self.before_put: list[Callable[[], object]] = []  # what other processes do meanwhile

    def put(self, key: str, value: bytes, overwrite: bool = True, namespace: str = "") -> bool:
        while self.before_put:
            self.before_put.pop()()
        exists = key in self.records
        if overwrite or not exists:
            self.records[key] = value
        return exists

    def list(self, prefix: str, namespace: str) -> list[bytes]:
        return [key.encode() for key in self.records if key.startswith(prefix)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StoreInMemory:
    store = StoreInMemory()
    kv = lease.internal_kv
    monkeypatch.setattr(kv, "_internal_kv_put", store.put)
    monkeypatch.setattr(kv, "_internal_kv_list", store.list)
    monkeypatch.setattr(kv, "_internal_kv_exists", lambda key, namespace: key in store.records)
    monkeypatch.setattr(kv, "_internal_kv_get", lambda key, namespace: store.records.get(key))
    monkeypatch.setattr(lease, "this_process", lambda: OWNER)
    monkeypatch.setattr(lease, "is_alive", lambda owner: store.alive)
    return store


def test_the_first_claim_is_term_1_and_records_its_owner(store: StoreInMemory) -> None:
    assert last_term("chat") == 0
    assert NameLease.acquire("chat").term == 1 == last_term("chat")
    assert owner_of("chat", 1) == OWNER and owner_of("chat", 2) is None


@pytest.mark.parametrize("alive", [True, None])
def test_a_name_whose_owner_may_be_alive_is_refused_unless_it_is_taken_over(
    store: StoreInMemory, alive: bool | None
) -> None:
    first = NameLease.acquire("chat")
    store.alive = alive
    with pytest.raises(OwnedElsewhere, match="server 'chat' belongs to process 7 on n1"):
        NameLease.acquire("chat")
    assert first.is_ours()
    assert NameLease.acquire("chat", takeover=True).term == 2 and not first.is_ours()


def test_the_name_of_a_dead_owner_is_free(store: StoreInMemory) -> None:
    NameLease.acquire("chat")
    store.alive = False
    assert NameLease.acquire("chat").term == 2


def test_a_released_name_is_free_and_keeps_its_term(store: StoreInMemory) -> None:
    first = NameLease.acquire("chat")
    first.release()
    assert owner_of("chat", 1) is None and first.is_ours()
    assert NameLease.acquire("chat").term == 2


def test_a_claim_that_another_process_made_meanwhile_is_checked_like_any_other(store: StoreInMemory) -> None:
    store.before_put.append(lambda: NameLease.acquire("chat"))
    with pytest.raises(OwnedElsewhere):
        NameLease.acquire("chat")
    store.before_put.append(lambda: NameLease.acquire("chat", takeover=True))
    assert NameLease.acquire("chat", takeover=True).term == 3


def test_terms_are_compared_as_numbers_and_names_as_a_whole(store: StoreInMemory) -> None:
    for _ in range(10):
        NameLease.acquire("a", takeover=True)
    assert last_term("a") == 10 and last_term("a_b") == 0
    assert NameLease.acquire("a_b").term == 1 and last_term("a") == 10
    with pytest.raises(ValueError, match="a server's name is"):
        NameLease.acquire("a/b")
