"""Labels and custom resources of a node in Ray."""

from __future__ import annotations

import pytest

from muster.agent.ray import labels
from muster.agent.ray.labels import NodeFacts, nvlink_domain

HEAD, WORKER = NodeFacts(0, "n1"), NodeFacts(3, "n4", nvlink_domain="a1b2-c3")
UUID = "  Fabric\n        State : Completed\n        ClusterUUID                       : {}\n        CliqueId : 1\n"


def test_every_node_is_labelled_with_rank_role_and_host() -> None:
    assert labels.labels(HEAD) == {
        "muster.io/rank": "0",
        "muster.io/node": "0",
        "muster.io/role": "head",
        "muster.io/host": "n1",
    }
    assert labels.labels(WORKER)["muster.io/nvlink-domain"] == "a1b2-c3"


def test_a_value_that_ray_does_not_take_is_left_out() -> None:
    assert "muster.io/host" not in labels.labels(NodeFacts(0, "host with spaces"))


def test_the_resources_are_those_that_nemo_rl_looks_for() -> None:
    assert labels.resources(HEAD, 8) == {
        "slurm_managed_ray_cluster": 1,
        "topo_rank": 1,
        "worker_units": 8,
        "ray_head": 1,
    }
    assert labels.resources(WORKER, None) == {
        "slurm_managed_ray_cluster": 1,
        "topo_rank": 4,
        "worker_units": 1,
        "nvlink_domain_a1b2-c3": 1,
    }


def test_a_dedicated_head_has_nothing_by_which_work_is_placed() -> None:
    head = NodeFacts(0, "n1", nvlink_domain="a1b2-c3")
    assert labels.resources(head, 8, dedicated_head=True) == {"slurm_managed_ray_cluster": 1, "ray_head": 1}
    assert "ray.io/gpu-domain" not in labels.labels(head, dedicated_head=True)


def test_the_gpu_domain_is_the_nvlink_domain() -> None:
    assert labels.labels(WORKER)["ray.io/gpu-domain"] == "a1b2-c3"
    assert "ray.io/gpu-domain" not in labels.labels(HEAD)


def test_nodes_are_sorted_by_their_place_in_the_network_or_by_their_number() -> None:
    near = [
        NodeFacts(rank, "n", f"spine{s}.leaf{f}.n{n}")
        for rank, (s, f, n) in enumerate([(2, 1, 1), (1, 9, 4), (1, 10, 2)])
    ]
    assert sorted(near, key=labels.topology_rank) == [near[1], near[2], near[0]]
    assert labels.topology_rank(NodeFacts(7, "n", "rack.x.y")) == 8


@pytest.mark.parametrize(
    ("listing", "domain"),
    [
        ("", None),
        (UUID.format("N/A"), None),
        (UUID.format("00000000-0000-0000-0000-000000000000"), None),
        (UUID.format("A1B2-C3") * 4, "a1b2-c3"),
        (UUID.format("A1B2-C3") + UUID.format("dd-ee"), None),
    ],
)
def test_the_nvlink_domain_is_the_one_that_all_gpus_are_in(listing: str, domain: str | None) -> None:
    assert nvlink_domain(listing) == domain


def test_a_spare_that_took_a_rank_keeps_its_own_number() -> None:
    named = labels.labels(NodeFacts(1, "n4", node_index=3))
    assert (named["muster.io/rank"], named["muster.io/node"]) == ("1", "3")
