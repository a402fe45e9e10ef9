"""A node's part in a gang: the ranks of its processes."""

from __future__ import annotations

import pytest

from muster.agent.gang_part import GangPart


@pytest.mark.parametrize(("nodes", "procs"), [(1, 1), (1, 8), (4, 1), (3, 5)])
def test_the_parts_of_all_nodes_have_each_rank_of_the_world_once_in_order(nodes: int, procs: int) -> None:
    parts = [GangPart(0, node, nodes, procs, "127.0.0.1", 29400) for node in range(nodes)]
    ranks = [part.rank(local) for part in parts for local in range(procs)]
    assert ranks == list(range(nodes * procs))
    assert {part.world_size for part in parts} == {nodes * procs}
