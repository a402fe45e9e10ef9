"""The explanation of a plan: where each replica goes, and what each node lacks for those without a place. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from muster.placement.planning.cluster import MEMORY, Node, mismatch
from muster.placement.planning.request import Model, Shape

if TYPE_CHECKING:
    from muster.placement.planning.planner import Plan

MAX_NAMED = 6  # nodes, models or replicas; further ones are counted
SLACK = 1e-6  # amounts are floats here


def explain_plan(plan: Plan) -> str:
    """Return the explanation in several lines."""
    wanted = sum(model.replicas for model in plan.models)
    heads = {
        "fits": f"{_replicas(wanted)} of {_models(plan)} fit",
        "busy": f"{_replicas(wanted)} of {_models(plan)} do not fit now; they would if nothing else ran",
        "infeasible": f"{_replicas(wanted)} of {_models(plan)} cannot fit, not even on the empty cluster",
        "undecided": f"no place was found for {_replicas(wanted)} of {_models(plan)}; the search used up its budget",
    }
    lines = [
        f"{heads[plan.outcome.value]} ({len(plan.cluster.nodes)} nodes, planned against their {plan.against} resources)"
    ]
    for model in plan.models:
        lines += _placed(plan, model)
    if plan.missing:
        lines += _lack_of_all(plan)
    for model in plan.models:
        if model.name in plan.missing:
            lines += _missing(plan, model)
    return "\n".join(lines)


def _models(plan: Plan) -> str:
    names = [model.name for model in plan.models]
    return ", ".join(names) if len(names) <= MAX_NAMED else f"{len(names)} models"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _placed(plan: Plan, model: Model) -> Iterator[str]:
    names = plan.cluster.names()
    for shape in model.shapes():
        placed = [each for each in plan.of(model.name) if each.shape == shape]
        if not placed:
            continue
        yield f"  {model.name}: {_replicas(len(placed))} of {shape}"
        for each in placed[:MAX_NAMED]:
            nodes = Counter(names[node] for node in each.nodes)
            where = ", ".join(name if count == 1 else f"{name} x {count}" for name, count in nodes.items())
            yield f"    {each.replica} on {where}"
        if len(placed) > MAX_NAMED:
            used = {node for each in placed for node in each.nodes}
            yield f"    ... and {len(placed) - MAX_NAMED} more; {len(used)} nodes in all"


def _lack_of_all(plan: Plan) -> Iterator[str]:
    """Name the resources of which all models together need more than their nodes have."""
    usable = [node for node in plan.cluster.nodes if any(not _why_excluded(node, model) for model in plan.models)]
    for name in sorted({name for model in plan.models for shape in model.shapes() for name in shape.bundle}):
        needed = sum(
            model.replicas * min(shape.count * shape.bundle.get(name, 0) for shape in model.shapes())
            for model in plan.models
        )
        there = sum(_resources(plan, node).get(name, 0) for node in usable)
        if needed > there + SLACK:
            have = f"the nodes have {_amount(name, there)} {plan.against}"
            yield f"  all together they need {_amount(name, needed)}; {have}"


def _missing(plan: Plan, model: Model) -> Iterator[str]:
    yield f"  {model.name}: no place for {plan.missing[model.name]} of {_replicas(model.replicas)}"
    left = {node.id: _left(plan, node) for node in plan.cluster.nodes}
    rooms = {
        index: sum(not _why_excluded(node, model) and not _lack(shape, left[node.id]) for node in plan.cluster.nodes)
        for index, shape in enumerate(model.shapes())
    }
    for index, shape in enumerate(model.shapes()):
        needed = f", and needs {shape.count}" if shape.strategy == "STRICT_SPREAD" else ""
        yield f"    as {shape}: a bundle fits on {rooms[index]} nodes{needed}"
    if model.same is not None:
        yield f"    all bundles of a replica must be on nodes with the same {model.same}"
    for shape in _explained_shapes(plan, model):
        yield f"    what nodes lack for {_bundle(shape)}, besides the replicas placed above:"
        yield from _by_node(plan, model, shape, left)


def _by_node(plan: Plan, model: Model, shape: Shape, left: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield one line for all nodes that lack the same."""
    reasons: dict[str, list[str]] = {}
    names = plan.cluster.names()
    for node in plan.cluster.nodes:
        reason = _why_excluded(node, model) or _lack(shape, left[node.id], node.total)
        if not reason and shape.count > 1:
            reason = "has room for it, but too few other nodes have"
        reasons.setdefault(reason or "has room for it", []).append(names[node.id])
    for reason, alike in reasons.items():
        yield f"      {_listed(alike)}: {reason}"


def _explained_shapes(plan: Plan, model: Model) -> list[Shape]:
    """Return the preferred shape of a model, and the first whose bundle would fit on an empty node."""
    shapes = model.shapes()
    for shape in shapes:
        if any(not _why_excluded(node, model) and not _lack(shape, dict(node.total)) for node in plan.cluster.nodes):
            return [shape] if shape is shapes[0] else [shapes[0], shape]
    return shapes[:1]


def _bundle(shape: Shape) -> str:
    return str(Shape(1, _on_one_node(shape), shape.strategy))


def _on_one_node(shape: Shape) -> Mapping[str, float]:
    """Return the resources needed on one node: those of one bundle, or of all if they are packed strictly."""
    times = shape.count if shape.strategy == "STRICT_PACK" else 1
    return {name: amount * times for name, amount in shape.bundle.items()}


def _resources(plan: Plan, node: Node) -> Mapping[str, float]:
    return node.total if plan.against == "total" else node.available


def _left(plan: Plan, node: Node) -> dict[str, float]:
    """Return the node's resources without those of the replicas that the plan puts there."""
    left = dict(_resources(plan, node))
    for placed in plan.replicas:
        for _ in range(placed.nodes.count(node.id)):
            for name, amount in placed.shape.bundle.items():
                left[name] = left.get(name, 0) - amount
    return left


def _why_excluded(node: Node, model: Model) -> str:
    if model.exclude_head and node.head:
        return "is the head, which is excluded"
    return mismatch(node, model.selector)


def _lack(shape: Shape, left: Mapping[str, float], total: Mapping[str, float] | None = None) -> str:
    """Describe the resources that a node lacks for the shape; empty if it lacks none."""
    lacks = []
    for name, amount in sorted(_on_one_node(shape).items()):
        have = left.get(name, 0)
        if have + SLACK < amount:
            there = _amount(name, total.get(name, 0)) if total is not None else ""
            lacks.append(f"{_amount(name, amount - have)} ({_amount(name, max(have, 0))} left of {there})")
    return f"lacks {' and '.join(lacks)}" if lacks else ""


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB memory" if name == MEMORY else f"{round(amount, 4):g} {name}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return (
        ", ".join(names)
        if len(names) <= MAX_NAMED
        else f"{', '.join(names[: MAX_NAMED - 1])} and {len(names) - MAX_NAMED + 1} more"
    )
