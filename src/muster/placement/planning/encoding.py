"""Cluster and models as vectors of whole numbers, with what nobody can use cut off. Pure.

What remains of a node when only its usable part is looked at decides which nodes are equal, and equal nodes are what
makes planning quick. Nothing is lost by it: a vector that was trimmed allows exactly the same placements.
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
# For each model from some level on: the domain a node is in, None if the model must not go there.
Sign = tuple[str | None, ...]
State = dict[tuple[Sign, Vector], tuple[int, ...]]  # the nodes of each class


@dataclass(frozen=True)
class Piece:
    """A shape in numbers. All bundles of a STRICT_PACK are one, as large as they are together."""

    shape: Shape
    bundles: int
    most: int  # on one node
    needs: Vector

    @cached_property
    def _rooms(self) -> dict[Vector, int]:
        return {}

    def room(self, free: Vector) -> int:
        """How many of its bundles there is room for. Asked for the same vectors again and again, hence the memory."""
        room = self._rooms.get(free)
        if room is None:
            room = min(have // need for have, need in zip(free, self.needs, strict=True) if need)
            self._rooms[free] = room
        return room


@dataclass(frozen=True)
class Demand:
    """A model in numbers."""

    model: Model
    pieces: tuple[Piece, ...]
    domains: tuple[str | None, ...]  # by node

    @property
    def replicas(self) -> int:
        return self.model.replicas


class Trim:
    """What of a node's vector the given demands can use; for the nodes that all of them may go to."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        self._pieces = [piece for demand in demands for piece in demand.pieces]
        self._known: dict[Vector, Vector | None] = {}
        sides = range(len(self._pieces[0].needs)) if self._pieces else range(0)
        self._steps = [gcd(*(piece.needs[side] for piece in self._pieces)) for side in sides]
        self._most = [
            sum(demand.replicas * max(piece.most * piece.needs[side] for piece in demand.pieces) for demand in demands)
            for side in sides
        ]
        self._ratios = [
            (side, other, max(Fraction(piece.needs[side], piece.needs[other]) for piece in self._pieces))
            for other in sides
            if all(piece.needs[other] for piece in self._pieces)
            for side in sides
            if side != other
        ]

    def __call__(self, free: Vector) -> Vector | None:
        """None when nothing fits there any more."""
        if free not in self._known:
            self._known[free] = self._trimmed(free)
        return self._known[free]

    def _trimmed(self, free: Vector) -> Vector | None:
        if not any(piece.room(free) for piece in self._pieces):
            return None
        usable = [min(have, most) for have, most in zip(free, self._most, strict=True)]
        for side, other, ratio in self._ratios:  # every bundle takes of `other` too, and there is only so much of that
            usable[side] = min(usable[side], usable[other] * ratio.numerator // ratio.denominator)
        return tuple(have // step * step if step else 0 for have, step in zip(usable, self._steps, strict=True))


@dataclass(frozen=True)
class Problem:
    """Everything the search needs to know. Demands are in the order in which they are to be placed."""

    demands: tuple[Demand, ...]
    frees: tuple[Vector, ...]  # by node

    @cached_property
    def _trims(self) -> dict[Sign, Trim]:
        return {}

    def trimmed(self, sign: Sign, free: Vector) -> Vector | None:
        """The usable part of a node's vector for the demands from some level on; the sign's length tells which."""
        trim = self._trims.get(sign)
        if trim is None:
            level = len(self.demands) - len(sign)
            allowed = [demand for demand, domain in zip(self.demands[level:], sign, strict=True) if domain is not None]
            trim = self._trims[sign] = Trim(allowed)
        return trim(free)

    def start(self) -> State:
        """All nodes, before anything is placed."""
        state: dict[tuple[Sign, Vector], list[int]] = {}
        for node in sorted(range(len(self.frees)), key=lambda node: sum(self.frees[node])):  # the fullest first
            free = self.frees[node]
            sign = tuple(demand.domains[node] for demand in self.demands)
            if (usable := self.trimmed(sign, free)) is not None:
                state.setdefault((sign, usable), []).append(node)
        return {key: tuple(nodes) for key, nodes in state.items()}

    def beyond(self, state: State) -> State:
        """The same nodes, as the next demand sees them: what only this one could use is no difference any more."""
        merged: State = {}
        for (sign, free), nodes in state.items():
            if (usable := self.trimmed(sign[1:], free)) is not None:
                key = sign[1:], usable
                merged[key] = merged.get(key, ()) + nodes
        return merged


def in_numbers(cluster: Cluster, models: Sequence[Model], total: bool) -> Problem:
    """The problem of placing the models, in this order, on what the nodes have free, or in all."""
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
    """Which nodes it may share a replica with; None where the model must not go."""
    if (model.exclude_head and node.head) or mismatch(node, model.selector):
        return None
    if model.same is None:
        return ""
    value = node.label(model.same)
    return f"={value}" if value is not None else f"@{node.id}"  # without the label it is alone
