"""The plan: which bundle of which replica goes to which node, or why there is no place. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from muster.placement.planning import explain
from muster.placement.planning.cluster import Cluster
from muster.placement.planning.encoding import Demand, Problem, in_numbers
from muster.placement.planning.request import STRICT_PACK, Model, Shape, checked
from muster.placement.planning.search import WORK, SearchResult, SearchVerdict, solve

FREE, TOTAL = "free", "total"  # what a plan is made against


class Outcome(Enum):
    """What came of planning."""

    FITS = "fits"
    BUSY = "busy"  # not with what is free now, but on the empty cluster
    INFEASIBLE = "infeasible"  # not even on the empty cluster: proven
    UNDECIDED = "undecided"  # neither found nor proven


@dataclass(frozen=True)
class PlacedReplica:
    """One replica's place."""

    model: str
    replica: int
    shape: Shape
    nodes: tuple[str, ...]  # the id of the node of each bundle

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [dict(self.shape.bundle) for _ in self.nodes]


@dataclass(frozen=True)
class Plan:
    """What goes where. Where not everything fits, `replicas` is as much of it as was found a place for."""

    outcome: Outcome
    against: str
    cluster: Cluster
    models: tuple[Model, ...]
    replicas: tuple[PlacedReplica, ...]
    missing: Mapping[str, int]  # model -> replicas without a place

    @property
    def fits(self) -> bool:
        return self.outcome is Outcome.FITS

    def of(self, model: str) -> list[PlacedReplica]:
        return [placed for placed in self.replicas if placed.model == model]

    def explain(self) -> str:
        """What goes where; and when not all of it fits, why, down to which node lacks what."""
        return explain.in_words(self)


def plan(cluster: Cluster, models: Sequence[Model], *, against: str = FREE, work: int = WORK) -> Plan:
    """One plan for all models at once, against what the nodes have free, or in all (`TOTAL`)."""
    if against not in (FREE, TOTAL):
        raise ValueError(f"a plan is made against {FREE!r} or {TOTAL!r} resources, not {against!r}")
    models = checked(models)
    if not models:
        return Plan(Outcome.FITS, against, cluster, (), (), {})
    found, problem = _best(cluster, models, against == TOTAL, work)
    outcome = Outcome.FITS
    if found.verdict is not SearchVerdict.FOUND:
        empty = found if against == TOTAL else _best(cluster, models, True, work)[0]
        outcome = {
            SearchVerdict.FOUND: Outcome.BUSY,
            SearchVerdict.NONE: Outcome.INFEASIBLE,
            SearchVerdict.UNKNOWN: Outcome.UNDECIDED,
        }[empty.verdict]
    missing = {problem.demands[level].model.name: count for level, count in found.missing.items()}
    return Plan(outcome, against, cluster, models, _by_replica(cluster, models, problem, found), missing)


def _best(cluster: Cluster, models: Sequence[Model], total: bool, work: int) -> tuple[SearchResult, Problem]:
    """In one of two orders: the largest models first, or those first that may go to the fewest nodes."""
    problem = in_numbers(cluster, models, total)
    sizes = {demand.model.name: _share(demand, problem) for demand in problem.demands}
    nodes = {demand.model.name: sum(d is not None for d in demand.domains) for demand in problem.demands}
    by_size = sorted(models, key=lambda model: (-sizes[model.name], nodes[model.name]))
    by_choice = sorted(models, key=lambda model: (nodes[model.name], -sizes[model.name]))
    results = []
    for order in [by_size] if by_size == by_choice else [by_size, by_choice]:
        problem = in_numbers(cluster, order, total)
        results.append((solve(problem, work), problem))
        if results[-1][0].verdict is not SearchVerdict.UNKNOWN:
            return results[-1]
    return results[0]


def _share(demand: Demand, problem: Problem) -> float:
    """How much of the largest node one bundle takes, of the resource of which it takes most."""
    needs = demand.pieces[0].needs
    largest = [max((free[side] for free in problem.frees), default=0) for side in range(len(needs))]
    return max((need / most if most else 1.0 for need, most in zip(needs, largest, strict=True)), default=1.0)


def _by_replica(
    cluster: Cluster, models: Sequence[Model], problem: Problem, found: SearchResult
) -> tuple[PlacedReplica, ...]:
    """In the order of the request; replicas are numbered as they were placed."""
    numbered: dict[str, list[PlacedReplica]] = {model.name: [] for model in models}
    for placed in found.placed:
        same = numbered[problem.demands[placed.level].model.name]
        shape, nodes = placed.piece.shape, placed.nodes
        if shape.strategy == STRICT_PACK:
            nodes *= shape.count  # its bundles were one piece
        ids = tuple(cluster.nodes[node].id for node in nodes)
        same.append(PlacedReplica(problem.demands[placed.level].model.name, len(same), shape, ids))
    return tuple(placed for model in models for placed in numbered[model.name])
