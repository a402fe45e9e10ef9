"""Where everything of a lab is: names, addresses, paths and limits, decided once and here (pure)."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.lab.errors import LabError

DEFAULT_STATE_DIR = Path("/run/muster-lab")
MAX_NODES = 64
PROCTRACKS = ("cgroup", "pgid")
#: Directories of which every node has its own; shared directories below them are bound through.
PRIVATE_DIRS = (Path("/tmp"), Path("/dev/shm"))
CONTROLLER = "labctl"
LOGIN = "login"
#: Further networks beside the one that Slurm uses.
MAX_EXTRA_NETWORKS = 8
#: An interface whose address no other node can reach; the kernel lists it before all others but loopback.
DEAD_INTERFACE = "dead0"
_DEAD_NETWORK = MAX_EXTRA_NETWORKS + 1
#: slurmstepd's sockets lie in the state directory, and a UNIX socket's path has at most 107 characters.
MAX_STATE_DIR_LENGTH = 64


@dataclasses.dataclass(frozen=True)
class LabPlan:
    """A lab as asked for, and everything that follows from it; holds nothing that runs."""

    nodes: int
    proctrack: str = "cgroup"
    state_dir: Path = DEFAULT_STATE_DIR
    shared: tuple[Path, ...] = ()
    slurmd_timeout: int = 10
    kill_wait: int = 10
    cpus: int = 8
    memory_mb: int = 65536
    gpus: int = 4
    extra_conf: tuple[str, ...] = ()
    ipv6: bool = False  # instead of IPv4
    extra_networks: int = 0
    dead_interface: bool = False
    debian_hosts: bool = False  # each node's own name is 127.0.1.1 in its /etc/hosts

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise LabError(f"a lab has 1 to {MAX_NODES} nodes, not {self.nodes}")
        if self.proctrack not in PROCTRACKS:
            raise LabError(f"proctrack is one of {', '.join(PROCTRACKS)}, not {self.proctrack!r}")
        if not 0 <= self.extra_networks <= MAX_EXTRA_NETWORKS:
            raise LabError(f"a lab has 0 to {MAX_EXTRA_NETWORKS} extra networks, not {self.extra_networks}")
        if len(str(self.state_dir)) > MAX_STATE_DIR_LENGTH:
            raise LabError(
                f"state directory {self.state_dir} is longer than {MAX_STATE_DIR_LENGTH} characters, "
                "too long for the UNIX sockets in it; set MUSTER_LAB_DIR to a shorter one"
            )

    # names and addresses

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    @property
    def number(self) -> int:
        """0 for the default state directory, else 1 to 250 from its path: labs apart do not collide."""
        if self.state_dir == DEFAULT_STATE_DIR:
            return 0
        return zlib.crc32(str(self.state_dir).encode()) % 250 + 1

    @property
    def mark(self) -> str:
        """The source name of the nodes' tmpfs mounts, and the name of the lab's cgroup directory."""
        return f"muster-lab{self.number}"

    @property
    def host_link(self) -> str:
        return f"mlab{self.number}"

    @property
    def networks(self) -> range:
        """Slurm's network, 0, and the extra ones. Network k is eth<k> on the nodes and a bridge br<k> between them."""
        return range(self.extra_networks + 1)

    def subnet(self, network: int = 0) -> str:
        return self._prefix(network) + ("/64" if self.ipv6 else "0/24")

    @property
    def single(self) -> int:
        """The prefix length of one address alone."""
        return 128 if self.ipv6 else 32

    def address(self, name: str, network: int = 0) -> str:
        """The address of a node, of the controller, or of the login side (this machine)."""
        return f"{self._prefix(network)}{self._host_number(name)}"

    def dead_address(self, name: str) -> str:
        """With its prefix length: the address of a node's dead interface."""
        return f"{self.address(name, _DEAD_NETWORK)}/{64 if self.ipv6 else 24}"

    def _prefix(self, network: int) -> str:
        return f"fd77:{network}:{self.number}::" if self.ipv6 else f"10.{77 + network}.{self.number}."

    def mac(self, name: str, network: int = 0) -> str:
        """A fixed hardware address: a node that comes back must not be a stranger in the others' ARP caches."""
        return f"02:6d:6c:{network:02x}:{self.number:02x}:{self._host_number(name):02x}"

    def _host_number(self, name: str) -> int:
        return {CONTROLLER: 253, LOGIN: 254}.get(name) or self.node_names.index(name) + 1

    # paths

    @property
    def state_file(self) -> Path:
        return self.state_dir / "lab.json"

    @property
    def etc_dir(self) -> Path:
        """What the nodes see as /etc/slurm, with their hosts and resolv.conf beside."""
        return self.state_dir / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc_dir / "slurm.conf"

    @property
    def log_dir(self) -> Path:
        return self.state_dir / "log"

    @property
    def spool_dir(self) -> Path:
        return self.state_dir / "spool"

    @property
    def munge_dir(self) -> Path:
        return self.state_dir / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge_dir / "socket"

    @property
    def gres_dir(self) -> Path:
        return self.state_dir / "gres"

    @property
    def boot_dir(self) -> Path:
        return self.state_dir / "boot"

    @property
    def stage_dir(self) -> Path:
        """An empty directory on which a node builds its private directories before moving them."""
        return self.state_dir / "stage"

    @property
    def shared_dir(self) -> Path:
        return self.state_dir / "shared"

    def log_file(self, name: str) -> Path:
        """The log of a machine's Slurm daemon."""
        return self.log_dir / ("slurmctld.log" if name == CONTROLLER else f"slurmd-{name}.log")

    def hosts_file(self, name: str) -> Path:
        """What a machine sees as its /etc/hosts."""
        return self.boot_dir / f"{name}.hosts"

    def boot_log(self, name: str) -> Path:
        return self.log_dir / f"boot-{name}.log"

    # the state file

    def to_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        return {**record, "state_dir": str(self.state_dir), "shared": [str(path) for path in self.shared]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> LabPlan:
        return cls(
            **{
                **record,
                "state_dir": Path(record["state_dir"]),
                "shared": tuple(Path(path) for path in record["shared"]),
                "extra_conf": tuple(record["extra_conf"]),
            }
        )


def chosen_state_dir(state_dir: str | os.PathLike[str] | None) -> Path:
    """The state directory: as given, else $MUSTER_LAB_DIR, else the default."""
    chosen = state_dir or os.environ.get("MUSTER_LAB_DIR") or DEFAULT_STATE_DIR
    return Path(chosen).resolve()
