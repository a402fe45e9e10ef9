"""From a request to groups: when it waits, plans again or gives up. Without Ray: clusters and groups are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from muster.placement.errors import NeverFits, PlacementError
from muster.placement.planning.cluster import Cluster, Node
from muster.placement.planning.planner import PlacedReplica
from muster.placement.planning.request import Model
from muster.placement.runtime import scheduler
from muster.placement.runtime.groups import GroupRequest
from muster.placement.runtime.scheduler import place, place_again

WAIT_S = 120.0
FREE = Cluster([Node("n0", {"CPU": 1, "node:10.0.0.1": 1}), Node("n1", {"CPU": 1, "node:10.0.0.2": 1})])
BUSY = Cluster([Node("n0", {"CPU": 1}, {"CPU": 0})])
EMPTY = Cluster([])
MODEL = Model("m", gpus_per_rank=0, replicas=2)


class FakeRay:
    """Answers with one cluster and one result of building after the other; the last ones stay."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = [FREE]
        self.errors: list[PlacementError] = []
        self.built: list[Sequence[GroupRequest]] = []

    def discover_nodes(self) -> Cluster:
        return self.clusters.pop(0) if len(self.clusters) > 1 else self.clusters[0]

    def build_groups(self, wanted: Sequence[GroupRequest], **options: Any) -> list[str]:
        self.built.append(wanted)
        if self.errors:
            raise self.errors.pop(0)
        return [f"group {request.name}" for request in wanted]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(scheduler, "discover_nodes", fake.discover_nodes)
    monkeypatch.setattr(scheduler, "build_groups", fake.build_groups)
    monkeypatch.setattr(scheduler, "RAY_HAS_LABEL_SELECTORS", True)
    monkeypatch.setattr(scheduler, "CLUSTER_POLL_S", 0.001)
    return fake


def name_of(placed: PlacedReplica) -> str:
    return f"r{placed.replica}"


def again(**options: Any) -> tuple[PlacedReplica, Any]:
    defaults: dict[str, Any] = {"wait_s": WAIT_S, "detached": False, "progress": print, "is_cancelled": lambda: False}
    return place_again(MODEL, "again", **{**defaults, **options})


def test_every_bundle_is_pinned_to_its_planned_node(fake: FakeRay) -> None:
    made = place([MODEL], name_of, detached=True)
    assert [(placed.nodes, group) for placed, group in made] == [(("n0",), "group r0"), (("n1",), "group r1")]
    assert [(request.name, request.selectors, request.lifetime) for request in fake.built[0]] == [
        ("r0", [{"ray.io/node-id": "n0"}], "detached"),
        ("r1", [{"ray.io/node-id": "n1"}], "detached"),
    ]
    place([MODEL], name_of)
    assert [request.lifetime for request in fake.built[1]] == [None, None]


def test_with_an_old_ray_bundles_are_pinned_by_address_and_the_real_nodes_are_returned(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "RAY_HAS_LABEL_SELECTORS", False)
    monkeypatch.setattr(scheduler, "get_bundle_node_id", lambda group, index: f"node of {group}")
    made = place([MODEL], name_of)
    assert [placed.nodes for placed, _ in made] == [("node of group r0",), ("node of group r1",)]
    assert [list(request.bundles) for request in fake.built[0]] == [
        [{"CPU": 1, "node:10.0.0.1": 0.001}],
        [{"CPU": 1, "node:10.0.0.2": 0.001}],
    ]
    assert [request.selectors for request in fake.built[0]] == [None, None]


def test_what_can_never_fit_is_refused_at_once_against_the_total_resources(fake: FakeRay) -> None:
    fake.clusters = [BUSY]
    with pytest.raises(NeverFits, match="planned against their total resources"):
        place([MODEL], name_of, wait_s=WAIT_S)
    assert fake.built == []


def test_a_busy_cluster_is_waited_for_and_the_reason_reported_once(fake: FakeRay) -> None:
    fake.clusters = [BUSY, BUSY, BUSY, FREE]
    told: list[str] = []
    place([Model("m", gpus_per_rank=0)], name_of, wait_s=WAIT_S, progress=told.append)
    assert [line.partition(":")[0] for line in told] == ["waiting for room"] and "do not fit now" in told[0]


def test_resources_that_were_taken_since_the_plan_are_planned_again(fake: FakeRay) -> None:
    fake.errors = [PlacementError("taken"), PlacementError("taken")]
    told: list[str] = []
    assert len(place([MODEL], name_of, wait_s=WAIT_S, progress=told.append)) == 2
    assert len(fake.built) == 3 and told == ["waiting for room: taken"]


@pytest.mark.parametrize("options", [{"wait_s": 0.0}, {"wait_s": WAIT_S, "is_cancelled": lambda: True}])
def test_a_request_without_room_fails_after_its_time_or_when_cancelled(fake: FakeRay, options: dict[str, Any]) -> None:
    fake.clusters = [BUSY]
    with pytest.raises(PlacementError, match=r"no room within \d+ s: 1 replica of m do not fit now"):
        place([Model("m", gpus_per_rank=0)], name_of, **options)


def test_a_lost_replica_waits_for_another_node_even_if_it_can_never_fit_on_the_rest(fake: FakeRay) -> None:
    fake.clusters = [EMPTY] * 6 + [FREE]
    told: list[str] = []
    placed, group = again(progress=told.append)
    assert group == "group again" and placed.nodes == ("n0",) and len(fake.built[0]) == 1  # one replica, not two
    assert len(told) == 1 and told[0].startswith("waiting for another node: 1 replica of m cannot fit")


@pytest.mark.parametrize("options", [{"wait_s": 0.0}, {"is_cancelled": lambda: True}])
def test_a_lost_replica_is_given_up_after_its_time_or_when_cancelled(
    fake: FakeRay, options: dict[str, Callable[[], bool]]
) -> None:
    fake.clusters = [EMPTY]
    with pytest.raises(NeverFits):
        again(**options)
