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
#: In the controller's network namespace.
BRIDGE = "br0"
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

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise LabError(f"a lab has 1 to {MAX_NODES} nodes, not {self.nodes}")
        if self.proctrack not in PROCTRACKS:
            raise LabError(f"proctrack is one of {', '.join(PROCTRACKS)}, not {self.proctrack!r}")
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
    def subnet(self) -> str:
        return f"10.77.{self.number}.0/24"

    def address(self, name: str) -> str:
        """The address of a node, of the controller, or of the login side (this machine)."""
        return f"10.77.{self.number}.{self._host_number(name)}"

    def mac(self, name: str) -> str:
        """A fixed hardware address: a node that comes back must not be a stranger in the others' ARP caches."""
        return f"02:6d:6c:61:{self.number:02x}:{self._host_number(name):02x}"

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
