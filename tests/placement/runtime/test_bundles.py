"""The node of a bundle and its ports, on real Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from muster.placement.planning.cluster import Node

ray = pytest.importorskip("ray")

from muster.placement.runtime import bundles


@pytest.mark.ray
def test_a_bundle_has_an_address_and_leases_every_port_once(group: Any, worker: Node) -> None:
    assert bundles.get_bundle_node_ip(group, 1).count(".") == 3
    assert bundles.get_bundle_node_id(group, 1) == worker.id
    given = [bundles.get_free_port_in_bundle(group, 1, 30500) for _ in range(2)]
    assert len(set(given)) == 2 and min(given) >= 30500
    with pytest.raises(ValueError, match=r"has bundles \[0, 1\], not 2"):
        bundles.get_bundle_node_ip(group, 2)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Stand in for Ray's table of one group: the node of each bundle. One node, n0, is alive."""
    nodes = {0: "n0", 1: "n1", 2: ""}
    monkeypatch.setattr(bundles, "placement_group_table", lambda group: {"bundles_to_node_id": nodes})
    monkeypatch.setattr(bundles.ray, "nodes", lambda: [{"NodeID": "n0", "NodeManagerAddress": "10.0.0.1"}])
    return nodes


def test_a_node_that_is_gone_and_a_group_that_is_not_ready_have_no_address(table: dict[int, str]) -> None:
    group: Any = None
    assert bundles.get_bundle_node_ip(group, 0) == "10.0.0.1"
    with pytest.raises(RuntimeError, match="the node of bundle 1, n1, is not in Ray's node table any more"):
        bundles.get_bundle_node_ip(group, 1)
    with pytest.raises(RuntimeError, match="bundle 2 has no node: the placement group is not ready"):
        bundles.get_bundle_node_id(group, 2)
