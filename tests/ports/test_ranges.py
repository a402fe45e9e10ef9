"""The zones of a host's ports."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.ports.ranges import HostPorts

RANGES = st.tuples(st.integers(1024, 65535), st.integers(0, 64511)).map(lambda one: (one[0], min(sum(one), 65535)))


@settings(deadline=None)
@given(ephemeral=RANGES)
def test_the_zones_are_all_unprivileged_ports_and_do_not_overlap(ephemeral: tuple[int, int]) -> None:
    ports = [port for zone in HostPorts(ephemeral, (range(2500, 2600),)).zones() for run in zone.runs for port in run]
    assert sorted(ports) == list(range(1024, 65536))
