"""Search for a placement: greedy descents first, then a complete search. Pure.

A descent places replica after replica without backtracking. The search backtracks, over classes of equal nodes instead
of nodes, and prunes a branch if `bounds` proves it infeasible or the same state has failed before. It ends without a
placement only if there is none, or if its budget of work is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from muster.placement.planning.bounds import proves_infeasible
from muster.placement.planning.encoding import Piece, Problem, State, Vector

WORK_BUDGET = 1_000_000  # classes examined; one or two seconds

NodeClass = tuple[tuple[tuple["str | None", ...], Vector], int]  # a class, and how many bundles fit on each node
Split = tuple[tuple[tuple[tuple["str | None", ...], Vector], int, int], ...]  # class, bundles on each node, nodes
Rank = tuple[int, ...]
Prefer = Callable[[Piece, int, Vector, int], Rank]  # shape, bundles that fit, free, number of models allowed there


class SearchVerdict(Enum):
    FOUND = "found"
    NONE = "none"  # proven
    UNKNOWN = "unknown"  # out of budget


@dataclass(frozen=True)
class Placed:
    """The place of one replica: node numbers, one for each bundle of the piece."""

    level: int
    piece: Piece
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class SearchResult:
    """The result. Without a full placement, `placed` is a partial one and `missing` counts the rest."""

    verdict: SearchVerdict
    placed: Sequence[Placed]
    missing: dict[int, int] = field(default_factory=dict)  # level -> replicas without a place


def solve(problem: Problem, work: int = WORK_BUDGET) -> SearchResult:
    """Return a placement, or a proof that there is none, from the first method that finds one."""
    partial: list[SearchResult] = []
    for prefer in (tight, roomy):
        found = descend(problem, prefer)
        if not found.missing:
            return found
        partial.append(found)
    best = min(partial, key=lambda found: sum(found.missing.values()))
    if proves_infeasible(problem, 0, problem.demands[0].replicas, problem.start()):
        return SearchResult(SearchVerdict.NONE, best.placed, best.missing)
    result = Search(problem, work).run()
    return result if result.verdict is SearchVerdict.FOUND else SearchResult(result.verdict, best.placed, best.missing)


# -- which node first ---------------------------------------------------------------------------------------------


def tight(piece: Piece, room: int, free: Vector, others: int) -> Rank:
    """Prefer nodes with little room and few other models; for spread bundles, much room (optimal for one model)."""
    if piece.max_per_node < piece.bundles:
        return (-room, others, sum(free))
    return (room < piece.bundles, others, room if room >= piece.bundles else -room, sum(free))


def roomy(piece: Piece, room: int, free: Vector, others: int) -> Rank:
    """Prefer nodes that few other models may use, then those with much room."""
    return (others, -room, sum(free))


# -- moves --------------------------------------------------------------------------------------------------------


def options(problem: Problem, level: int, state: State, prefer: Prefer) -> Iterator[tuple[Piece, Split]]:
    """Yield every way to place one replica, up to the choice among equal nodes; the preferred first."""
    for piece in problem.demands[level].pieces:
        domains: dict[str, list[tuple[Rank, NodeClass]]] = {}
        for key in state:
            signature, free = key
            if signature[0] is not None and (room := piece.room(free)):
                rank = prefer(piece, room, free, len(signature) - signature.count(None))
                domains.setdefault(signature[0], []).append((rank, (key, min(room, piece.max_per_node))))
        for classes in _fitting_domains(piece, domains, state):
            for split in splits(piece.bundles, classes, state):
                yield piece, split


def _fitting_domains(
    piece: Piece, domains: dict[str, list[tuple[Rank, NodeClass]]], state: State
) -> Iterator[list[NodeClass]]:
    """Yield the classes, in order, of each domain that can hold a replica; domains with least room first."""
    rooms = {name: sum(room * len(state[key]) for _, (key, room) in ranked) for name, ranked in domains.items()}
    for name in sorted((name for name, room in rooms.items() if room >= piece.bundles), key=lambda name: rooms[name]):
        yield [node_class for _, node_class in sorted(domains[name], key=lambda ranked: ranked[0])]


def splits(bundles: int, classes: Sequence[NodeClass], state: State) -> Iterator[Split]:
    """Yield every way to put `bundles` equal bundles on nodes of these classes; fill the first classes first."""
    beyond = [0]  # room in the classes from each index on
    for key, room in reversed(classes):
        beyond.append(beyond[-1] + room * len(state[key]))
    beyond.reverse()

    def within(at: int, left: int, most: int, nodes: int) -> Iterator[Split]:
        """Split `left` bundles, with `nodes` nodes of class `at` not used yet, each with at most `most` bundles."""
        if left == 0:
            yield ()
            return
        if at == len(classes) or left > min(most, left) * nodes + beyond[at + 1]:
            return
        for each in range(min(most, left), 0, -1):
            for count in range(min(nodes, left // each), 0, -1):
                for rest in within(at, left - each * count, each - 1, nodes - count):
                    yield ((classes[at][0], each, count), *rest)
        if at + 1 < len(classes):
            yield from within(at + 1, left, classes[at + 1][1], len(state[classes[at + 1][0]]))

    if classes:
        yield from within(0, bundles, classes[0][1], len(state[classes[0][0]]))


def apply(problem: Problem, level: int, state: State, piece: Piece, split: Split) -> tuple[State, Placed]:
    """Return the state after one replica was placed this way, and its place."""
    after, taken = dict(state), []
    for key, each, count in split:  # before any node is put back: it may get into a class that is taken from later
        nodes = after[key]
        taken.append((key, each, nodes[:count]))
        after[key] = nodes[count:]
    for (signature, free), each, nodes in taken:
        left = tuple(have - each * need for have, need in zip(free, piece.needs, strict=True))
        if (usable := problem.trimmed(signature, left)) is not None:
            after[signature, usable] = nodes + after.get((signature, usable), ())
    for key, _, _ in split:
        if not after.get(key, True):
            del after[key]
    placed = tuple(node for _, each, nodes in taken for node in nodes for _ in range(each))
    return after, Placed(level, piece, placed)


# -- the two methods ----------------------------------------------------------------------------------------------


def descend(problem: Problem, prefer: Prefer) -> SearchResult:
    """Place each replica at its preferred place without backtracking; those that do not fit are left out."""
    state, placed, missing = problem.start(), [], {}
    for level, demand in enumerate(problem.demands):
        for number in range(demand.replicas):
            choice = next(options(problem, level, state, prefer), None)
            if choice is None:
                missing[level] = demand.replicas - number
                break
            state, place = apply(problem, level, state, *choice)
            placed.append(place)
        state = problem.next_level(state)
    return SearchResult(SearchVerdict.NONE if missing else SearchVerdict.FOUND, placed, missing)


@dataclass
class Frame:
    """A node of the search tree: the replicas left at this level, and the ways to place the next one."""

    level: int
    left: int
    state: State
    options: Iterator[tuple[Piece, Split]]

    def key(self) -> tuple[int, int, frozenset[tuple[object, int]]]:
        """Return what determines whether it can succeed: of each class only the number of nodes matters."""
        return self.level, self.left, frozenset((key, len(nodes)) for key, nodes in self.state.items())


class Search:
    """A depth-first search, complete within its budget."""

    def __init__(self, problem: Problem, work: int) -> None:
        self.problem = problem
        self.work = work
        self.failed: set[object] = set()

    def run(self) -> SearchResult:
        frames = [self._frame(0, self.problem.demands[0].replicas, self.problem.start())]
        placed: list[Placed] = []
        while frames:
            frame = frames[-1]
            if frame.level == len(self.problem.demands):
                return SearchResult(SearchVerdict.FOUND, placed)
            choice = next(frame.options, None)
            if choice is None:
                self.failed.add(frame.key())
                frames.pop()
                if placed:
                    placed.pop()
                continue
            self.work -= 1 + len(frame.state)
            if self.work < 0:
                return SearchResult(SearchVerdict.UNKNOWN, placed)
            state, place = apply(self.problem, frame.level, frame.state, *choice)
            child = self._next(frame, state)
            if not self._is_dead_end(child):
                frames.append(child)
                placed.append(place)
        return SearchResult(SearchVerdict.NONE, [])

    def _next(self, frame: Frame, state: State) -> Frame:
        if frame.left > 1:
            return self._frame(frame.level, frame.left - 1, state)
        level = frame.level + 1
        done = level == len(self.problem.demands)
        return self._frame(level, 0 if done else self.problem.demands[level].replicas, self.problem.next_level(state))

    def _frame(self, level: int, left: int, state: State) -> Frame:
        moves = options(self.problem, level, state, tight) if level < len(self.problem.demands) else iter(())
        return Frame(level, left, state, moves)

    def _is_dead_end(self, frame: Frame) -> bool:
        if frame.level == len(self.problem.demands):
            return False
        return frame.key() in self.failed or proves_infeasible(self.problem, frame.level, frame.left, frame.state)
