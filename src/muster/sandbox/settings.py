"""The settings of a sandbox server. Invalid ones are refused, all problems at once."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field, fields
from typing import Any

from muster.sandbox.jail.rootfs import SCRATCH
from muster.sandbox.node_memory import default_reserve_mb, default_total_mb

GATEWAYS = ("auto", "python")  # both are the same: accepted since earlier configurations have them
ISOLATION = ("auto", "full", "floor", "process", "gvisor")
CLIENT_PATIENCE_S = 5.0  # clients wait their timeout and this long: queueing and killing must fit
KILL_S = 1.0  # for ending a process tree, before its whole worker is killed
FIRST_USER = 1_900_000_000  # of unused user ids: each worker of a service that runs as root has another one
MAX_SLOTS = 100_000
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class SettingsError(ValueError):
    """Invalid settings; `problems` has a message for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def half_of_memory_mb() -> int:
    return (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20) // 2


@dataclass(frozen=True)
class SandboxSettings:
    """The defaults are for a single node. Sizes are in MB, times in seconds."""

    host: str = "127.0.0.1"  # of the endpoint for clients: a loopback address
    port: int = 6000  # 0: any free one
    listen: str | None = None  # ADDRESS:PORT of the endpoint between nodes, which requires the token
    token: str | None = None
    members_file: str | None = None  # lists the sandboxes of the cluster; the endpoint for clients serves all of them
    gateway: str = "auto"  # without effect
    single_node: bool = False  # ignore members_file
    ready_file: str | None = None  # written, as JSON, when the sandbox is ready

    workers_min: int = field(default_factory=lambda: max(2, usable_cores()))
    workers_max: int = field(default_factory=lambda: max(4, 2 * usable_cores()))
    idle_s: float = 60.0
    queue: int = 1024
    queue_wait_s: float = 3.0
    max_timeout_s: float = 3600.0
    max_output: int = 16 << 20

    sessions_max: int = 256
    session_idle_s: float = 3600.0
    session_memory_mb: int = field(default_factory=half_of_memory_mb)  # of all sessions together; half of the memory
    memory_total_mb: int = field(default_factory=default_total_mb)  # of all programs and sessions together
    memory_reserve_mb: int = field(default_factory=default_reserve_mb)  # kept free on the node
    workspaces_max: int = 256
    shared_scratch: bool = False  # calls without a workspace share one

    isolation: str = "auto"
    network: bool = False
    first_user: int = FIRST_USER
    memory_mb: int = 4096
    processes: int = 128
    open_files: int = 1024
    file_mb: int = 512
    scratch_mb: int = 512

    python: str = sys.executable
    preload: tuple[str, ...] = ("numpy?", "sympy?", "IPython?")
    read_only: tuple[str, ...] = ()  # further paths that programs may read
    env: tuple[tuple[str, str], ...] = ()  # environment variables of programs
    scratch_dir: str = field(default_factory=tempfile.gettempdir)

    def __post_init__(self) -> None:
        problems = [*_worker_problems(self), *_address_problems(self), *_path_problems(self)]
        if problems:
            raise SettingsError(problems)

    @property
    def is_clustered(self) -> bool:
        return self.members_file is not None and not self.single_node

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SandboxSettings:
        """Return settings from the JSON of a service's configuration; raise SettingsError for unknown names."""
        known = {one.name for one in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise SettingsError([f"unknown setting {name!r}" for name in unknown])
        lists: dict[str, Any] = {name: tuple(values[name]) for name in ("preload", "read_only") if name in values}
        env = {"env": tuple(sorted(dict(values["env"]).items()))} if "env" in values else {}
        merged: dict[str, Any] = {**values, **lists, **env}
        return cls(**merged)


def _worker_problems(settings: SandboxSettings) -> list[str]:
    problems = [
        f"{name} is {getattr(settings, name)}: it must be at least {least}"
        for name, least in (
            ("workers_min", 1),
            ("workers_max", 1),
            ("queue", 0),
            ("sessions_max", 0),
            ("session_memory_mb", 1),
            ("memory_total_mb", 16),
            ("memory_reserve_mb", 0),
            ("workspaces_max", 0),
            ("memory_mb", 16),
            ("processes", 1),
            ("open_files", 16),
            ("file_mb", 1),
            ("scratch_mb", 1),
            ("max_output", 1),
            ("idle_s", 0),
            ("session_idle_s", 0),
            ("first_user", 1),
        )
        if getattr(settings, name) < least
    ]
    if settings.workers_min > settings.workers_max:
        problems.append(f"workers_min is {settings.workers_min}, more than workers_max, {settings.workers_max}")
    if settings.workers_max + settings.sessions_max + settings.workspaces_max > MAX_SLOTS:
        problems.append(f"workers_max, sessions_max and workspaces_max are more than {MAX_SLOTS} together")
    if not settings.max_timeout_s > 0:
        problems.append(f"max_timeout_s is {settings.max_timeout_s}: it must be more than 0")
    longest = CLIENT_PATIENCE_S - KILL_S - 0.5
    if not 0 <= settings.queue_wait_s <= longest:
        problems.append(
            f"queue_wait_s is {settings.queue_wait_s:g}: it must be from 0 to {longest:g}, "
            f"since clients wait for their timeout and {CLIENT_PATIENCE_S:g} s"
        )
    return problems


def _address_problems(settings: SandboxSettings) -> list[str]:
    problems = []
    try:
        if not ipaddress.ip_address(settings.host).is_loopback:
            problems.append(
                f"host is {settings.host}, which is not loopback: `listen` opens another endpoint, with a token"
            )
    except ValueError:
        problems.append(f"host is {settings.host!r}: it must be a loopback address")
    if not 0 <= settings.port <= 65535:
        problems.append(f"port is {settings.port}: it must be from 0 to 65535")
    if settings.listen is not None:
        try:
            split_address(settings.listen)
        except ValueError as error:
            problems.append(f"listen: {error}")
        if not settings.token:
            problems.append("listen needs a token: without one, any host on the network could run code here")
    if settings.token and not TOKEN.fullmatch(settings.token):
        problems.append("token: only letters, digits and ._~+/=- are allowed, since it is sent in a header")
    if settings.is_clustered and settings.listen is None:
        problems.append("members_file needs listen: other nodes forward requests to it")
    if settings.gateway not in GATEWAYS:
        problems.append(f"gateway is {settings.gateway!r}: it must be one of {', '.join(GATEWAYS)}")
    return problems


def _path_problems(settings: SandboxSettings) -> list[str]:
    problems = [f"read_only: {path} does not exist" for path in settings.read_only if not os.path.exists(path)]
    for path in map(os.path.abspath, settings.read_only):
        hidden = [place for place in SCRATCH if place == path or place.startswith(path.rstrip("/") + "/")]
        if hidden:
            problems.append(
                f"read_only: {path} would hide {', '.join(hidden)}, where programs write; use paths below it"
            )
    if settings.isolation not in ISOLATION:
        problems.append(f"isolation is {settings.isolation!r}: it must be one of {', '.join(ISOLATION)}")
    if not os.access(settings.python, os.X_OK):
        problems.append(f"python: {settings.python} cannot be run")
    if not os.path.isdir(settings.scratch_dir):
        problems.append(f"scratch_dir: {settings.scratch_dir} is not a directory")
    return problems


def split_address(text: str) -> tuple[str, int]:
    """Split ADDRESS:PORT, [IPv6]:PORT, or PORT, for all addresses.

    >>> split_address("10.0.0.3:7000"), split_address("[::]:0"), split_address("7000")
    (('10.0.0.3', 7000), ('::', 0), ('0.0.0.0', 7000))
    """
    address, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return address.strip("[]") or "0.0.0.0", int(port)
