"""The index of spares finds the same spare as a scan of all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.lifecycle.config import EXTERNAL_LEADER
from muster.lifecycle.node_sets import AvailableSpares
from muster.lifecycle.topology import NodeLocation, shared_parts, topology_order

LOCATIONS = st.builds(
    NodeLocation,
    st.sampled_from(["", "a", "b", "b10", "b9"]),
    st.sampled_from(["", "s1", "s1.l1", "s1.l1.n1", "s1.l2.n2", "s2.l1.n1", "s2..n1", ".l1", "s10.l1.n2"]),
)


def scan(spares: dict[int, NodeLocation], lost: NodeLocation, same_domain: bool) -> int | None:
    """Return the nearest spare, by definition: its domain, the shared part of the address, the order of ranks."""
    ordered = topology_order(spares, EXTERNAL_LEADER)
    near = [number for number in ordered if not same_domain or spares[number].domain == lost.domain]

    def distance(number: int) -> tuple[bool, int]:
        return spares[number].domain != lost.domain, -len(shared_parts(spares[number].topology, lost.topology))

    return min(near, key=distance, default=None)


@settings(max_examples=200, deadline=None)
@given(st.lists(LOCATIONS, max_size=8), LOCATIONS, st.booleans(), st.sets(st.integers(0, 7)))
def test_the_nearest_spare_is_that_of_a_scan_also_after_others_left(
    locations: list[NodeLocation], lost: NodeLocation, same_domain: bool, left: set[int]
) -> None:
    spares = dict(enumerate(locations))
    index = AvailableSpares()
    for number, location in reversed(spares.items()):
        index.add(number, location)
    assert index.nearest(lost, same_domain) == scan(spares, lost, same_domain)
    for number in left:
        index.remove(number)
        spares.pop(number, None)
    assert len(index) == len(spares)
    assert index.nearest(lost, same_domain) == scan(spares, lost, same_domain)
