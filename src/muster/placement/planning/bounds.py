"""What proves that there is no place, without a search. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.placement.planning.encoding import Demand, Piece, Problem, State


def proves_infeasible(problem: Problem, level: int, left: int, state: State) -> bool:
    """True only when the demands from this level on, of whose first `left` replicas are to be placed, cannot fit."""
    rest = problem.demands[level:]
    wanted = [left, *(demand.replicas for demand in rest[1:])]
    return _short_of_a_resource(rest, wanted, state) or any(
        sum(most_alone(piece, offset, count, state) for piece in demand.pieces) < count
        for offset, (demand, count) in enumerate(zip(rest, wanted, strict=True))
    )


def _short_of_a_resource(rest: Sequence[Demand], wanted: Sequence[int], state: State) -> bool:
    """Whether all together need more of something than all nodes have."""
    return any(
        sum(count * _least(demand, side) for demand, count in zip(rest, wanted, strict=True))
        > sum(free[side] * len(nodes) for (_, free), nodes in state.items())
        for side in range(len(rest[0].pieces[0].needs))
    )


def _least(demand: Demand, side: int) -> int:
    """What one replica takes of a resource in whichever shape takes least of it."""
    return min(piece.bundles * piece.needs[side] for piece in demand.pieces)


def most_alone(piece: Piece, offset: int, wanted: int, state: State) -> int:
    """How many replicas of this shape would fit (up to as many as are wanted), were nothing else to be placed: exact.

    `offset` is the demand's place among those that the state's signs speak of.
    """
    rooms: dict[str, list[tuple[int, int]]] = {}  # by domain: for how many bundles a node has room, how many nodes do
    for (sign, free), nodes in state.items():
        domain = sign[offset]
        if domain is not None and (room := piece.room(free)):
            rooms.setdefault(domain, []).append((room, len(nodes)))
    return min(wanted, sum(_most_in_domain(piece, wanted, domain) for domain in rooms.values()))


def _most_in_domain(piece: Piece, wanted: int, rooms: Sequence[tuple[int, int]]) -> int:
    if piece.most >= piece.bundles:  # nothing keeps its bundles apart
        return sum(room * nodes for room, nodes in rooms) // piece.bundles
    # On different nodes each: r replicas fit exactly when they do with at most r bundles on every node.
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(room, middle) * nodes for room, nodes in rooms) >= piece.bundles * middle:
            low = middle
        else:
            high = middle - 1
    return low
