"""The plan: which bundle of which replica goes to which node, or why some do not fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from muster.placement.planning import explain
from muster.placement.planning.cluster import Cluster
from muster.placement.planning.encoding import Demand, Problem, encode
from muster.placement.planning.request import STRICT_PACK, Model, Shape, validate_models
from muster.placement.planning.search import WORK_BUDGET, SearchResult, SearchVerdict, solve

FREE, TOTAL = "free", "total"  # the resources of nodes that a plan may use


class Outcome(Enum):
    """The outcome of planning."""

    FITS = "fits"
    BUSY = "busy"  # not on the free resources, but on the empty cluster
    INFEASIBLE = "infeasible"  # proven: not even on the empty cluster
    UNDECIDED = "undecided"  # neither a placement nor a proof was found


@dataclass(frozen=True)
class PlacedReplica:
    """The nodes of one replica."""

    model: str
    replica: int
    shape: Shape
    nodes: tuple[str, ...]  # the id of the node of each bundle

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Return the resources of each bundle."""
        return [dict(self.shape.bundle) for _ in self.nodes]


@dataclass(frozen=True)
class Plan:
    """Where each replica goes. If not all fit, `replicas` holds those that were placed."""

    outcome: Outcome
    against: str
    cluster: Cluster
    models: tuple[Model, ...]
    replicas: tuple[PlacedReplica, ...]
    missing: Mapping[str, int]  # model -> replicas without a place

    @property
    def fits(self) -> bool:
        """Return whether all replicas have a place."""
        return self.outcome is Outcome.FITS

    def of(self, model: str) -> list[PlacedReplica]:
        """Return the placed replicas of a model."""
        return [placed for placed in self.replicas if placed.model == model]

    def explain(self) -> str:
        """Explain where each replica goes, and if not all fit, what each node lacks."""
        return explain.explain_plan(self)


def plan(cluster: Cluster, models: Sequence[Model], *, against: str = FREE, work: int = WORK_BUDGET) -> Plan:
    """Plan all models together, on the free or the total (`TOTAL`) resources of the nodes."""
    if against not in (FREE, TOTAL):
        raise ValueError(f"a plan is made against {FREE!r} or {TOTAL!r} resources, not {against!r}")
    models = validate_models(models)
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
    """Search in one of two orders: the largest models first, or those first that may use the fewest nodes."""
    problem = encode(cluster, models, total)
    sizes = {demand.model.name: _share(demand, problem) for demand in problem.demands}
    nodes = {demand.model.name: sum(d is not None for d in demand.domains) for demand in problem.demands}
    by_size = sorted(models, key=lambda model: (-sizes[model.name], nodes[model.name]))
    by_choice = sorted(models, key=lambda model: (nodes[model.name], -sizes[model.name]))
    results = []
    for order in [by_size] if by_size == by_choice else [by_size, by_choice]:
        problem = encode(cluster, order, total)
        results.append((solve(problem, work), problem))
        if results[-1][0].verdict is not SearchVerdict.UNKNOWN:
            return results[-1]
    return results[0]


def _share(demand: Demand, problem: Problem) -> float:
    """Return the largest share of the largest node that one bundle needs of any resource."""
    needs = demand.pieces[0].needs
    largest = [max((free[index] for free in problem.frees), default=0) for index in range(len(needs))]
    return max((need / most if most else 1.0 for need, most in zip(needs, largest, strict=True)), default=1.0)


def _by_replica(
    cluster: Cluster, models: Sequence[Model], problem: Problem, found: SearchResult
) -> tuple[PlacedReplica, ...]:
    """Return the replicas in the order of the request, numbered as they were placed."""
    numbered: dict[str, list[PlacedReplica]] = {model.name: [] for model in models}
    for placed in found.placed:
        same = numbered[problem.demands[placed.level].model.name]
        shape, nodes = placed.piece.shape, placed.nodes
        if shape.strategy == STRICT_PACK:
            nodes *= shape.count  # its bundles were one piece
        ids = tuple(cluster.nodes[node].id for node in nodes)
        same.append(PlacedReplica(problem.demands[placed.level].model.name, len(same), shape, ids))
    return tuple(placed for model in models for placed in numbered[model.name])
