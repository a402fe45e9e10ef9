"""Proofs, without a search, that a request cannot be placed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.placement.planning.encoding import Demand, Piece, Problem, State


def proves_infeasible(problem: Problem, level: int, left: int, state: State) -> bool:
    """Return True only if the demands from this level on cannot fit, with `left` replicas of the first."""
    rest = problem.demands[level:]
    wanted = [left, *(demand.replicas for demand in rest[1:])]
    return _short_of_a_resource(rest, wanted, state) or any(
        sum(max_replicas(piece, offset, count, state) for piece in demand.pieces) < count
        for offset, (demand, count) in enumerate(zip(rest, wanted, strict=True))
    )


def _short_of_a_resource(rest: Sequence[Demand], wanted: Sequence[int], state: State) -> bool:
    """Return whether all demands together need more of a resource than all nodes have."""
    return any(
        sum(count * _least_need(demand, index) for demand, count in zip(rest, wanted, strict=True))
        > sum(free[index] * len(nodes) for (_, free), nodes in state.items())
        for index in range(len(rest[0].pieces[0].needs))
    )


def _least_need(demand: Demand, index: int) -> int:
    """Return how much of a resource one replica needs in the shape that needs least of it."""
    return min(piece.bundles * piece.needs[index] for piece in demand.pieces)


def max_replicas(piece: Piece, offset: int, wanted: int, state: State) -> int:
    """Return exactly how many replicas of this shape, at most `wanted`, would fit if nothing else were placed.

    `offset` is the index of the demand in the state's signatures.
    """
    rooms: dict[str, list[tuple[int, int]]] = {}  # by domain: (bundles that fit on a node, number of such nodes)
    for (signature, free), nodes in state.items():
        domain = signature[offset]
        if domain is not None and (room := piece.room(free)):
            rooms.setdefault(domain, []).append((room, len(nodes)))
    return min(wanted, sum(_most_in_domain(piece, wanted, domain) for domain in rooms.values()))


def _most_in_domain(piece: Piece, wanted: int, rooms: Sequence[tuple[int, int]]) -> int:
    if piece.max_per_node >= piece.bundles:  # bundles may share a node
        return sum(room * nodes for room, nodes in rooms) // piece.bundles
    # All bundles on different nodes: r replicas fit if and only if they fit with at most r bundles on every node.
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(room, middle) * nodes for room, nodes in rooms) >= piece.bundles * middle:
            low = middle
        else:
            high = middle - 1
    return low
