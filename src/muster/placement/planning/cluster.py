"""The nodes of a cluster with their resources and labels, and label selectors. Pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CPU, GPU, MEMORY = "CPU", "GPU", "memory"  # Ray's names

IGNORE_HEAD_VARIABLE = "CURATOR_IGNORE_RAY_HEAD_NODE"
NODE_ID_LABEL = "ray.io/node-id"  # the one label that Ray itself sets
NODE_TYPE_LABEL = "ray.io/node-type"
WORKER_NODE_LABEL = {NODE_TYPE_LABEL: "worker"}

_SELECTOR = re.compile(r"(?P<negated>!?)(?:in\((?P<several>[^()]*)\)|(?P<one>[^()!]*))")


@dataclass(frozen=True)
class Node:
    """One node: its total and free resources, its labels and its name."""

    id: str
    total: Mapping[str, float]
    free: Mapping[str, float] | None = None  # None: everything is free
    labels: Mapping[str, str] = field(default_factory=dict)
    head: bool = False
    name: str = ""  # for people; not unique

    @property
    def available(self) -> Mapping[str, float]:
        """Return the free resources, or all of them if those in use are unknown."""
        return self.total if self.free is None else self.free

    def label(self, key: str) -> str | None:
        """Return the value of a label; every node has the id label."""
        return self.id if key == NODE_ID_LABEL else self.labels.get(key)


@dataclass(frozen=True)
class Cluster:
    """The live nodes."""

    nodes: tuple[Node, ...]

    def __init__(self, nodes: Iterable[Node]) -> None:
        object.__setattr__(self, "nodes", tuple(nodes))
        if len({node.id for node in self.nodes}) != len(self.nodes):
            raise ValueError("two nodes of a cluster have the same id")

    def names(self) -> dict[str, str]:
        """Return display names by node id; an ambiguous name is followed by a part of the id."""
        counts = Counter(node.name for node in self.nodes)
        return {
            node.id: node.id
            if not node.name
            else node.name
            if counts[node.name] == 1
            else f"{node.name} ({node.id[:8]})"
            for node in self.nodes
        }

    def worker_selector(self) -> dict[str, str]:
        """Return a selector for every node but the head: by node type if nodes have it, else "not the head's id"."""
        if all(NODE_TYPE_LABEL in node.labels for node in self.nodes if not node.head):
            return dict(WORKER_NODE_LABEL)
        head = next((node for node in self.nodes if node.head), None)
        return {} if head is None else {NODE_ID_LABEL: f"!{head.id}"}


def mismatch(node: Node, selector: Mapping[str, str]) -> str:
    """Describe the first label that does not match, by Ray's rules; empty if all match.

    >>> mismatch(Node("n1", {}, labels={"gpu": "h100"}), {"gpu": "in(a100,b200)"})
    "label gpu is 'h100', not in(a100,b200)"
    >>> mismatch(Node("n1", {}), {"gpu": "!h100"})
    ''
    """
    for key, wanted in selector.items():
        value = node.label(key)
        if not _accepts(wanted, value):
            has = f"is {value!r}" if value is not None else "is not set"
            return f"label {key} {has}, not {wanted}"
    return ""


def _accepts(wanted: str, value: str | None) -> bool:
    """Return whether one condition of a selector holds. An unset label never matches `a` and always matches `!a`."""
    match = parse_selector(wanted)
    values = [match["one"]] if match["several"] is None else [part.strip() for part in match["several"].split(",")]
    return (value in values) != bool(match["negated"])


def parse_selector(wanted: str) -> re.Match[str]:
    """Parse one condition of a selector; raises ValueError if it is invalid."""
    match = _SELECTOR.fullmatch(wanted)
    if match is None:
        raise ValueError(f"a label selector is `a`, `!a`, `in(a,b)` or `!in(a,b)`, not {wanted!r}")
    return match


def ignore_ray_head_node() -> bool:
    """Return whether the environment excludes the head."""
    return os.environ.get(IGNORE_HEAD_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")
