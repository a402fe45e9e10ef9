"""From a request to placement groups: planned, built where planned, and planned again when somebody was quicker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ray.util.placement_group import PlacementGroup

from muster.placement.errors import NeverFits, PlacementError
from muster.placement.planning.cluster import NODE_ID_LABEL, Cluster
from muster.placement.planning.planner import TOTAL, Outcome, PlacedReplica, plan
from muster.placement.planning.request import Model
from muster.placement.runtime.bundles import get_bundle_node_id
from muster.placement.runtime.groups import DETACHED, KNOWS_SELECTORS, GroupRequest, Progress, build_groups
from muster.placement.runtime.nodes import discover_nodes

WAIT_S = 600.0
SETTLE_S = 10.0  # for a group whose place was free a moment ago
LOOK_S = 1.0  # how often the cluster is looked at while it is busy; nothing tells that something was freed
A_LITTLE = 0.001


def place(
    models: Sequence[Model],
    name_of: Callable[[PlacedReplica], str],
    *,
    wait_s: float = WAIT_S,
    detached: bool = False,
    progress: Progress = lambda line: None,
    given_up: Callable[[], bool] = lambda: False,
) -> list[tuple[PlacedReplica, PlacementGroup]]:
    """A group for every replica, each bundle on its planned node; all or none.

    NeverFits at once, with the plan's explanation, for what can never be; PlacementError after `wait_s` for what others
    hold.
    """
    deadline, told = time.monotonic() + wait_s, ""
    while True:
        cluster = discover_nodes()
        made = plan(cluster, models)
        reason = made.explain()
        if made.outcome is Outcome.INFEASIBLE:
            raise NeverFits(plan(cluster, models, against=TOTAL).explain())  # who holds what now is beside the point
        left = deadline - time.monotonic()
        if made.fits:
            wanted = [_pinned(placed, name_of(placed), cluster, detached) for placed in made.replicas]
            try:
                groups = build_groups(wanted, timeout_s=min(SETTLE_S, max(0.0, left)), progress=progress)
                return [(_as_built(placed, group), group) for placed, group in zip(made.replicas, groups, strict=True)]
            except PlacementError as error:  # what was free was taken meanwhile, or a node has gone
                reason = str(error)
        if left <= 0 or given_up():
            raise PlacementError(f"no place within {wait_s:g} s: {reason}")
        if reason.splitlines()[0] != told:
            told = reason.splitlines()[0]
            progress(f"waiting for room: {told}")
        time.sleep(min(LOOK_S, left))


def place_again(
    model: Model, name: str, *, wait_s: float, detached: bool, progress: Progress, given_up: Callable[[], bool]
) -> tuple[PlacedReplica, PlacementGroup]:
    """Another place for one replica whose node is gone.

    It did fit: where it never will on the nodes that are left, another node, such as a spare, is waited for as well.
    """
    deadline, told = time.monotonic() + wait_s, False
    while True:
        left = deadline - time.monotonic()
        try:
            ((placed, group),) = place(
                [replace(model, replicas=1)],
                lambda _: name,
                wait_s=max(0.0, left),
                detached=detached,
                progress=progress,
                given_up=given_up,
            )
            return placed, group
        except NeverFits as error:
            if left <= 0 or given_up():
                raise
            if not told:
                progress(f"waiting for another node: {str(error).splitlines()[0]}")
            told = True
        time.sleep(min(LOOK_S, left))


def _as_built(placed: PlacedReplica, group: PlacementGroup) -> PlacedReplica:
    """Where several nodes share an address, as in a cluster on one machine, an old Ray may have taken another one."""
    if KNOWS_SELECTORS:
        return placed
    return replace(placed, nodes=tuple(get_bundle_node_id(group, index) for index in range(len(placed.nodes))))


def _pinned(placed: PlacedReplica, name: str, cluster: Cluster, detached: bool) -> GroupRequest:
    """A group whose bundles go where the plan says: by the node's id, or where Ray cannot do that by its address."""
    lifetime = DETACHED if detached else None
    if KNOWS_SELECTORS:
        selectors = [{NODE_ID_LABEL: node} for node in placed.nodes]
        return GroupRequest(name, placed.bundles, placed.shape.strategy, selectors, lifetime)
    addresses = {
        node.id: next(key for key in node.total if key.startswith("node:") and not key.startswith("node:__"))
        for node in cluster.nodes
    }
    bundles = [{**bundle, addresses[node]: A_LITTLE} for bundle, node in zip(placed.bundles, placed.nodes, strict=True)]
    return GroupRequest(name, bundles, placed.shape.strategy, None, lifetime)
