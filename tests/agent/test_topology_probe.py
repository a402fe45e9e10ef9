"""The location of a node, from its environment and in its greeting."""

from __future__ import annotations

import pytest

from muster.agent.topology_probe import node_location
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation

TREE = "spine1.leaf3.n17"


@pytest.mark.parametrize(
    ("env", "nvlink", "place"),
    [
        ({}, None, UNKNOWN_LOCATION),
        ({"SLURM_TOPOLOGY_ADDR": "n17"}, None, UNKNOWN_LOCATION),
        ({"SLURM_TOPOLOGY_ADDR": TREE}, None, NodeLocation("spine1.leaf3", TREE)),
        ({"SLURM_TOPOLOGY_ADDR": TREE}, "0a1b", NodeLocation("0a1b", TREE)),
        ({"SLURM_TOPOLOGY_ADDR": TREE, "MUSTER_DOMAIN": "rack7"}, "0a1b", NodeLocation("rack7", TREE)),
        ({"SLURM_TOPOLOGY_ADDR": TREE, "MUSTER_TOPOLOGY": "rack7.n17"}, None, NodeLocation("rack7", "rack7.n17")),
        ({"MUSTER_TOPOLOGY": "x5"}, None, NodeLocation("", "x5")),
        ({"MUSTER_DOMAIN": "rack7"}, None, NodeLocation("rack7", "")),
    ],
)
def test_muster_s_variables_override_nvlink_and_nvlink_overrides_slurm(
    env: dict[str, str], nvlink: str | None, place: NodeLocation
) -> None:
    assert node_location(env, nvlink) == place
