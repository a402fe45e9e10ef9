"""The status of a lab as data."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """A node's processes and link on this host, and its state in Slurm (such as `idle` or `down*`)."""

    name: str
    address: str
    pid: int | None
    alive: bool
    link_up: bool
    slurm_state: str


@dataclasses.dataclass(frozen=True)
class LabStatus:
    """A lab and its nodes."""

    state_dir: str
    shared: tuple[str, ...]
    proctrack: str
    controller_alive: bool
    controller_answers: bool
    nodes: tuple[NodeStatus, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
