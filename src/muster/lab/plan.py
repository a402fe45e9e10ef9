"""The names, addresses, paths and limits of a lab (pure)."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.lab.errors import LabError
from muster.lab.users import LabUser

DEFAULT_STATE_DIR = Path("/run/muster-lab")
MAX_NODES = 64
PROCTRACKS = ("cgroup", "pgid")
#: Directories that are private to each node; shared directories below them are bind-mounted.
PRIVATE_DIRS = (Path("/tmp"), Path("/dev/shm"))
CONTROLLER = "labctl"
LOGIN = "login"
#: Networks in addition to the one that Slurm uses.
MAX_EXTRA_NETWORKS = 8
#: An interface whose address no other node can reach; the kernel lists it before all others but loopback.
DEAD_INTERFACE = "dead0"
_DEAD_NETWORK = MAX_EXTRA_NETWORKS + 1
#: slurmstepd's sockets are in the state directory, and a UNIX socket's path has at most 107 characters.
MAX_STATE_DIR_LENGTH = 64


@dataclasses.dataclass(frozen=True)
class LabPlan:
    """The configuration of a lab and everything derived from it; it has no running parts."""

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
    debian_hosts: bool = False  # each node's name is 127.0.1.1 in its /etc/hosts
    topology: tuple[str, ...] = ()  # lines of topology.conf; extra_conf selects the TopologyPlugin
    slurm_prefix: Path | None = None  # with bin, lib and plugins of a release of Slurm, instead of the installed one
    users: tuple[LabUser, ...] = ()  # besides root
    closed: tuple[Path, ...] = ()  # directories of root on the way to Python; `private_dirs` says what becomes of them

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

    # users and directories

    def user(self, name: str) -> LabUser:
        for user in self.users:
            if user.name == name:
                return user
        known = ", ".join(user.name for user in self.users) or "none; `muster lab up --user NAME` adds one"
        raise LabError(f"no user {name!r} in the lab; its users are: {known}")

    @property
    def private_dirs(self) -> tuple[Path, ...]:
        """Return the directories that each node replaces, and in which it keeps only what must be visible.

        Closed ones are replaced, so that users can reach the lab's Python in them and nothing else.
        """
        return (*PRIVATE_DIRS, *self.closed)

    # names and addresses

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    @property
    def number(self) -> int:
        """Return the number in the lab's addresses: 0 for the default state directory, else 1 to 250 from its path.

        Two labs may have the same number. The second cannot start beside the first, since its addresses are taken.
        """
        return self._path_hash % 250 + 1 if self._path_hash else 0

    @property
    def mark(self) -> str:
        """Return the source name of the nodes' tmpfs mounts, also the name of the lab's cgroup directory."""
        return f"muster-lab{self._path_hash:x}"

    @property
    def host_link(self) -> str:
        return f"mlab{self._path_hash:x}"

    @property
    def _path_hash(self) -> int:
        """Return 0 for the default state directory, else 32 bits of its path.

        What belongs to a lab is recognized by these bits. With as few as an address has room for, `lab down` would
        sometimes stop the processes of another lab.
        """
        return 0 if self.state_dir == DEFAULT_STATE_DIR else zlib.crc32(str(self.state_dir).encode())

    @property
    def networks(self) -> range:
        """Return the numbers of Slurm's network, 0, and of the extra ones; nodes see k as eth<k>, on bridge br<k>."""
        return range(self.extra_networks + 1)

    def subnet(self, network: int = 0) -> str:
        return self._prefix(network) + ("/64" if self.ipv6 else "0/24")

    @property
    def single_prefix(self) -> int:
        """Return the prefix length of a single address."""
        return 128 if self.ipv6 else 32

    def address(self, name: str, network: int = 0) -> str:
        """Return the address of a node, of the controller, or of the login node (this machine)."""
        return f"{self._prefix(network)}{self._host_number(name)}"

    def dead_address(self, name: str) -> str:
        """Return the address of a node's dead interface, with its prefix length."""
        return f"{self.address(name, _DEAD_NETWORK)}/{64 if self.ipv6 else 24}"

    def _prefix(self, network: int) -> str:
        return f"fd77:{network}:{self.number}::" if self.ipv6 else f"10.{77 + network}.{self.number}."

    def mac(self, name: str, network: int = 0) -> str:
        """Return a fixed hardware address, so that a restarted node matches the others' ARP caches."""
        return f"02:6d:6c:{network:02x}:{self.number:02x}:{self._host_number(name):02x}"

    def _host_number(self, name: str) -> int:
        return {CONTROLLER: 253, LOGIN: 254}.get(name) or self.node_names.index(name) + 1

    # paths

    @property
    def state_file(self) -> Path:
        return self.state_dir / "lab.json"

    @property
    def etc_dir(self) -> Path:
        """Return the directory that nodes see as /etc/slurm, with their resolv.conf."""
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
        """Return an empty directory in which a node builds its private directories before moving them."""
        return self.state_dir / "stage"

    @property
    def shared_dir(self) -> Path:
        return self.state_dir / "shared"

    @property
    def homes_dir(self) -> Path:
        return self.state_dir / "home"

    def home(self, user: LabUser) -> Path:
        """Return the user's home directory, which all nodes share."""
        return self.homes_dir / user.name

    def log_file(self, name: str) -> Path:
        """Return the log of a machine's Slurm daemon."""
        return self.log_dir / ("slurmctld.log" if name == CONTROLLER else f"slurmd-{name}.log")

    def hosts_file(self, name: str) -> Path:
        """Return the file that a machine sees as its /etc/hosts."""
        return self.boot_dir / f"{name}.hosts"

    def boot_log(self, name: str) -> Path:
        return self.log_dir / f"boot-{name}.log"

    # the state file

    def to_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        paths = {name: [str(path) for path in getattr(self, name)] for name in ("shared", "closed")}
        prefix = str(self.slurm_prefix) if self.slurm_prefix else None
        return {**record, **paths, "state_dir": str(self.state_dir), "slurm_prefix": prefix}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> LabPlan:
        return cls(
            **{
                **record,
                "state_dir": Path(record["state_dir"]),
                "shared": tuple(Path(path) for path in record["shared"]),
                "extra_conf": tuple(record["extra_conf"]),
                "topology": tuple(record["topology"]),
                "slurm_prefix": Path(record["slurm_prefix"]) if record["slurm_prefix"] else None,
                "users": tuple(LabUser(**user) for user in record["users"]),
                "closed": tuple(Path(path) for path in record["closed"]),
            }
        )


def chosen_state_dir(state_dir: str | os.PathLike[str] | None) -> Path:
    """Return the given state directory, else $MUSTER_LAB_DIR, else the default."""
    chosen = state_dir or os.environ.get("MUSTER_LAB_DIR") or DEFAULT_STATE_DIR
    return Path(chosen).resolve()
