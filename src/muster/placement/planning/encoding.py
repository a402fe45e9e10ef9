"""Encode cluster and models as vectors of integers, trimmed to the usable amounts. Pure.

Nodes with equal usable amounts are equivalent, and equivalent nodes make planning fast. Trimming loses nothing: a
trimmed vector allows exactly the same placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd

from muster.placement.planning.cluster import Cluster, Node, mismatch
from muster.placement.planning.request import STRICT_PACK, STRICT_SPREAD, Model, Shape

UNIT = 10_000  # Ray counts resources in ten-thousandths

Vector = tuple[int, ...]
# For each model from some level on: the domain of a node, None if the model may not use the node.
Signature = tuple[str | None, ...]
State = dict[tuple[Signature, Vector], tuple[int, ...]]  # the nodes of each class


@dataclass(frozen=True)
class Piece:
    """An encoded shape. All bundles of a STRICT_PACK are one bundle with their sum."""

    shape: Shape
    bundles: int
    max_per_node: int
    needs: Vector

    @cached_property
    def _rooms(self) -> dict[Vector, int]:
        return {}

    def room(self, free: Vector) -> int:
        """Return how many bundles fit; cached, since it is called for the same vectors many times."""
        room = self._rooms.get(free)
        if room is None:
            room = min(have // need for have, need in zip(free, self.needs, strict=True) if need)
            self._rooms[free] = room
        return room


@dataclass(frozen=True)
class Demand:
    """An encoded model."""

    model: Model
    pieces: tuple[Piece, ...]
    domains: tuple[str | None, ...]  # by node

    @property
    def replicas(self) -> int:
        return self.model.replicas


class Trim:
    """Trims vectors to what the given demands can use, for nodes that all of them may use."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        self._pieces = [piece for demand in demands for piece in demand.pieces]
        self._known: dict[Vector, Vector | None] = {}
        indexes = range(len(self._pieces[0].needs)) if self._pieces else range(0)
        self._steps = [gcd(*(piece.needs[index] for piece in self._pieces)) for index in indexes]
        self._limits = [
            sum(
                demand.replicas * max(piece.max_per_node * piece.needs[index] for piece in demand.pieces)
                for demand in demands
            )
            for index in indexes
        ]
        self._ratios = [
            (index, other, max(Fraction(piece.needs[index], piece.needs[other]) for piece in self._pieces))
            for other in indexes
            if all(piece.needs[other] for piece in self._pieces)
            for index in indexes
            if index != other
        ]

    def __call__(self, free: Vector) -> Vector | None:
        """Return the trimmed vector; None if no bundle fits."""
        if free not in self._known:
            self._known[free] = self._trimmed(free)
        return self._known[free]

    def _trimmed(self, free: Vector) -> Vector | None:
        if not any(piece.room(free) for piece in self._pieces):
            return None
        usable = [min(have, limit) for have, limit in zip(free, self._limits, strict=True)]
        for index, other, ratio in self._ratios:  # every bundle also needs `other`, which is limited
            usable[index] = min(usable[index], usable[other] * ratio.numerator // ratio.denominator)
        return tuple(have // step * step if step else 0 for have, step in zip(usable, self._steps, strict=True))


@dataclass(frozen=True)
class Problem:
    """The input of the search. Demands are in the order in which they are placed."""

    demands: tuple[Demand, ...]
    frees: tuple[Vector, ...]  # by node

    @cached_property
    def _trims(self) -> dict[Signature, Trim]:
        return {}

    def trimmed(self, signature: Signature, free: Vector) -> Vector | None:
        """Return the usable part of a vector for the last demands, as many as the signature is long."""
        trim = self._trims.get(signature)
        if trim is None:
            demands = self.demands[len(self.demands) - len(signature) :]
            allowed = [demand for demand, domain in zip(demands, signature, strict=True) if domain is not None]
            trim = self._trims[signature] = Trim(allowed)
        return trim(free)

    def start(self) -> State:
        """Return all nodes, before anything is placed."""
        state: dict[tuple[Signature, Vector], list[int]] = {}
        for node in sorted(range(len(self.frees)), key=lambda node: sum(self.frees[node])):  # the fullest first
            free = self.frees[node]
            signature = tuple(demand.domains[node] for demand in self.demands)
            if (usable := self.trimmed(signature, free)) is not None:
                state.setdefault((signature, usable), []).append(node)
        return {key: tuple(nodes) for key, nodes in state.items()}

    def next_level(self, state: State) -> State:
        """Merge the classes for the next demand: amounts that only the first demand could use do not count any more."""
        merged: State = {}
        for (signature, free), nodes in state.items():
            if (usable := self.trimmed(signature[1:], free)) is not None:
                key = signature[1:], usable
                merged[key] = merged.get(key, ()) + nodes
        return merged


def encode(cluster: Cluster, models: Sequence[Model], total: bool) -> Problem:
    """Encode the placement of the models, in this order, on the free or total resources of the nodes."""
    shapes = {model.name: model.shapes() for model in models}
    names = sorted({name for each in shapes.values() for shape in each for name in shape.bundle})
    needed = [[_needed(s, name) for name in names] for each in shapes.values() for s in each]
    steps = [gcd(*column) for column in zip(*needed, strict=True)]
    frees = [node.total if total else node.available for node in cluster.nodes]
    demands = []
    for model in models:
        pieces = tuple(
            _piece(shape, tuple(_needed(shape, name) // step for name, step in zip(names, steps, strict=True)))
            for shape in shapes[model.name]
        )
        demands.append(Demand(model, pieces, tuple(_domain(node, model) for node in cluster.nodes)))
    vectors = (
        tuple(_units(free.get(name, 0)) // step for name, step in zip(names, steps, strict=True)) for free in frees
    )
    return Problem(tuple(demands), tuple(vectors))


def _units(amount: float) -> int:
    return round(amount * UNIT)


def _needed(shape: Shape, name: str) -> int:
    amount = shape.bundle.get(name, 0)
    return max(1, _units(amount)) if amount else 0


def _piece(shape: Shape, needs: Vector) -> Piece:
    if shape.strategy == STRICT_PACK:
        return Piece(shape, 1, 1, tuple(need * shape.count for need in needs))
    return Piece(shape, shape.count, 1 if shape.strategy == STRICT_SPREAD else shape.count, needs)


def _domain(node: Node, model: Model) -> str | None:
    """Return the domain whose nodes may share a replica; None if the model may not use the node."""
    if (model.exclude_head and node.head) or mismatch(node, model.selector):
        return None
    if model.same is None:
        return ""
    value = node.label(model.same)
    return f"={value}" if value is not None else f"@{node.id}"  # without the label it is a domain by itself
