"""Where the leader is found: the addresses it publishes, and the one that Ray's head shall have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from muster.agent.job import Identity
from muster.agent.net.addresses import NoAddress, address_towards, host_addresses

LOOPBACK = "127.0.0.1"
PEER_WAIT_S = 1.0  # importing Ray takes about as long, so waiting for another node costs nothing


class LeaderAddress:
    """The leader's addresses, best first; its own agent may always come by way of loopback."""

    def __init__(self, identity: Identity, interface: str | None, env: Mapping[str, str]) -> None:
        launcher = address_towards(env.get("SLURM_LAUNCH_NODE_IPADDR", ""))
        try:
            found = [] if identity.local else host_addresses(interface, launcher)
        except (NoAddress, OSError):  # the agent of this node finds the same, and says so by name
            found = []
        self.addresses = [*found, LOOPBACK]
        self._certain = len(found) < 2 or found[0] == launcher

    def patience(self) -> float | None:
        """How long to wait for another node's proof before the first address is taken; None: until it comes."""
        return PEER_WAIT_S if self._certain else None

    def of_the_head(self, proven: Iterable[str]) -> str:
        """The address most agents of other nodes have proved to reach; the first one while none has connected."""
        return [*(address for address, _ in Counter(proven).most_common(1)), *self.addresses][0]
