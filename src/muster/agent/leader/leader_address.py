"""The addresses that the leader publishes, and the address of Ray's head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from muster.agent.net.addresses import LOOPBACK, NoAddress, address_towards, host_addresses

PEER_WAIT_S = 1.0  # importing Ray takes about as long, so waiting for another node costs nothing


class LeaderAddress:
    """The leader's addresses, best first, with loopback for the agent of the same node."""

    def __init__(self, local: bool, interface: str | None, env: Mapping[str, str]) -> None:
        """`local`: only loopback."""
        launcher = address_towards(env.get("SLURM_LAUNCH_NODE_IPADDR", ""))
        try:
            found = [] if local else host_addresses(interface, launcher)
        except (NoAddress, OSError):  # this node's agent finds the same and reports it
            found = []
        self.addresses = [*found, LOOPBACK]
        self._certain = len(found) < 2 or found[0] == launcher

    def peer_timeout(self) -> float | None:
        """Return how long to wait for a node that proves an address before the first one is used; None: no limit."""
        return PEER_WAIT_S if self._certain else None

    def head_address(self, proven: Iterable[str]) -> str:
        """Return the address that most agents of other nodes have reached; the first one if none has connected."""
        return [*(address for address, _ in Counter(proven).most_common(1)), *self.addresses][0]
