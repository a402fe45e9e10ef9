"""Where a node says it is."""

from __future__ import annotations

import pytest

from muster.agent.topology_probe import place_from, place_of
from muster.lifecycle.topology import NOWHERE, NodeLocation

TREE = "spine1.leaf3.n17"


@pytest.mark.parametrize(
    ("env", "nvlink", "place"),
    [
        ({}, None, NOWHERE),
        ({"SLURM_TOPOLOGY_ADDR": "n17"}, None, NOWHERE),
        ({"SLURM_TOPOLOGY_ADDR": TREE}, None, NodeLocation("spine1.leaf3", TREE)),
        ({"SLURM_TOPOLOGY_ADDR": TREE}, "0a1b", NodeLocation("0a1b", TREE)),
        ({"SLURM_TOPOLOGY_ADDR": TREE, "MUSTER_DOMAIN": "rack7"}, "0a1b", NodeLocation("rack7", TREE)),
        ({"SLURM_TOPOLOGY_ADDR": TREE, "MUSTER_TOPOLOGY": "rack7.n17"}, None, NodeLocation("rack7", "rack7.n17")),
        ({"MUSTER_TOPOLOGY": "x5"}, None, NodeLocation("", "x5")),
        ({"MUSTER_DOMAIN": "rack7"}, None, NodeLocation("rack7", "")),
    ],
)
def test_ours_wins_over_nvlink_and_nvlink_over_slurm(
    env: dict[str, str], nvlink: str | None, place: NodeLocation
) -> None:
    assert place_of(env, nvlink) == place


def test_a_greeting_without_a_place_is_from_nowhere() -> None:
    assert place_from({"rank": 3}) == NOWHERE
    assert place_from({"domain": "a", "topology": "a.b"}) == NodeLocation("a", "a.b")
