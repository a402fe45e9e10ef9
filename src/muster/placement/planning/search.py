"""Is there a place for everything? Quick descents first, then a complete search. Pure.

A descent places replica after replica and never takes one back. The search does: over classes of equal nodes instead
of nodes, giving up a branch when `bounds` prove it hopeless or the same state has failed before. It ends without a
placement only when there is none, or when it has used up its budget of work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from muster.placement.planning.bounds import proves_infeasible
from muster.placement.planning.encoding import Piece, Problem, State, Vector

WORK = 1_000_000  # classes looked at; one or two seconds' worth

Class = tuple[tuple[tuple["str | None", ...], Vector], int]  # a class, and how many bundles each of its nodes can have
Split = tuple[tuple[tuple[tuple["str | None", ...], Vector], int, int], ...]  # class, bundles on each node, nodes
Rank = tuple[int, ...]
Prefer = Callable[[Piece, int, Vector, int], Rank]  # shape, room for so many bundles, free, other models allowed there


class SearchVerdict(Enum):
    FOUND = "found"
    NONE = "none"  # proven
    UNKNOWN = "unknown"  # out of budget


@dataclass(frozen=True)
class Placed:
    """One replica's place: nodes by number, one for each piece's bundle."""

    level: int
    piece: Piece
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class SearchResult:
    """What came of it. Without a full placement, `placed` is a partial one and `missing` what it leaves out."""

    verdict: SearchVerdict
    placed: Sequence[Placed]
    missing: dict[int, int] = field(default_factory=dict)  # level -> replicas without a place


def solve(problem: Problem, work: int = WORK) -> SearchResult:
    """The first of the ways that finds a placement, or a proof that there is none."""
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
    """Where least is left and fewest others may go; spread bundles where most room is, which is right for one model."""
    if piece.most < piece.bundles:
        return (-room, others, sum(free))
    return (room < piece.bundles, others, room if room >= piece.bundles else -room, sum(free))


def roomy(piece: Piece, room: int, free: Vector, others: int) -> Rank:
    """Fewest others first, then where most room is."""
    return (others, -room, sum(free))


# -- moves --------------------------------------------------------------------------------------------------------


def options(problem: Problem, level: int, state: State, prefer: Prefer) -> Iterator[tuple[Piece, Split]]:
    """Every way to place one replica, up to the choice among equal nodes; the preferred first."""
    for piece in problem.demands[level].pieces:
        domains: dict[str, list[tuple[Rank, Class]]] = {}
        for key in state:
            sign, free = key
            if sign[0] is not None and (room := piece.room(free)):
                rank = prefer(piece, room, free, len(sign) - sign.count(None))
                domains.setdefault(sign[0], []).append((rank, (key, min(room, piece.most))))
        for classes in _fitting_domains(piece, domains, state):
            for split in splits(piece.bundles, classes, state):
                yield piece, split


def _fitting_domains(piece: Piece, domains: dict[str, list[tuple[Rank, Class]]], state: State) -> Iterator[list[Class]]:
    """The domains that can hold a replica, those with least room first; in each its classes in order."""
    rooms = {name: sum(room * len(state[key]) for _, (key, room) in ranked) for name, ranked in domains.items()}
    for name in sorted((name for name, room in rooms.items() if room >= piece.bundles), key=lambda name: rooms[name]):
        yield [of_class for _, of_class in sorted(domains[name], key=lambda ranked: ranked[0])]


def splits(bundles: int, classes: Sequence[Class], state: State) -> Iterator[Split]:
    """Every way to put so many equal bundles on nodes of these classes, as many as possible on the first ones first."""
    beyond = [0]  # room in the classes from each on, counted from the end
    for key, room in reversed(classes):
        beyond.append(beyond[-1] + room * len(state[key]))
    beyond.reverse()

    def within(at: int, left: int, most: int, nodes: int) -> Iterator[Split]:
        """With `nodes` nodes of class `at` not looked at yet, none of which is to get more than `most`."""
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
    """The state after one replica was placed so."""
    after, taken = dict(state), []
    for (
        key,
        each,
        count,
    ) in split:  # all are taken before any is put back: it may land in a class still to be taken from
        nodes = after[key]
        taken.append((key, each, nodes[:count]))
        after[key] = nodes[count:]
    for (sign, free), each, nodes in taken:
        left = tuple(have - each * need for have, need in zip(free, piece.needs, strict=True))
        if (usable := problem.trimmed(sign, left)) is not None:
            after[sign, usable] = nodes + after.get((sign, usable), ())
    for key, _, _ in split:
        if not after.get(key, True):
            del after[key]
    placed = tuple(node for _, each, nodes in taken for node in nodes for _ in range(each))
    return after, Placed(level, piece, placed)


# -- the two ways -------------------------------------------------------------------------------------------------


def descend(problem: Problem, prefer: Prefer) -> SearchResult:
    """Place each replica where it is preferred and never look back; what finds no place is left out."""
    state, placed, missing = problem.start(), [], {}
    for level, demand in enumerate(problem.demands):
        for number in range(demand.replicas):
            choice = next(options(problem, level, state, prefer), None)
            if choice is None:
                missing[level] = demand.replicas - number
                break
            state, place = apply(problem, level, state, *choice)
            placed.append(place)
        state = problem.beyond(state)
    return SearchResult(SearchVerdict.NONE if missing else SearchVerdict.FOUND, placed, missing)


@dataclass
class Frame:
    """A point of the search: so many replicas of this level are left, and these ways to place the next one."""

    level: int
    left: int
    state: State
    options: Iterator[tuple[Piece, Split]]

    def key(self) -> tuple[int, int, frozenset[tuple[object, int]]]:
        """What decides whether it can succeed: which nodes are in a class does not matter, only how many."""
        return self.level, self.left, frozenset((key, len(nodes)) for key, nodes in self.state.items())


class Search:
    """Depth first, complete within its budget."""

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
            if not self._lost(child):
                frames.append(child)
                placed.append(place)
        return SearchResult(SearchVerdict.NONE, [])

    def _next(self, frame: Frame, state: State) -> Frame:
        if frame.left > 1:
            return self._frame(frame.level, frame.left - 1, state)
        level = frame.level + 1
        done = level == len(self.problem.demands)
        return self._frame(level, 0 if done else self.problem.demands[level].replicas, self.problem.beyond(state))

    def _frame(self, level: int, left: int, state: State) -> Frame:
        moves = options(self.problem, level, state, tight) if level < len(self.problem.demands) else iter(())
        return Frame(level, left, state, moves)

    def _lost(self, frame: Frame) -> bool:
        if frame.level == len(self.problem.demands):
            return False
        return frame.key() in self.failed or proves_infeasible(self.problem, frame.level, frame.left, frame.state)
