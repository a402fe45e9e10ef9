"""Turn a request into placement groups: plan, build them on the planned nodes, plan again if resources were taken."""

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
from muster.placement.runtime.groups import DETACHED, RAY_HAS_LABEL_SELECTORS, GroupRequest, Progress, build_groups
from muster.placement.runtime.nodes import discover_nodes

WAIT_S = 600.0  # for room on a busy cluster
GROUP_READY_TIMEOUT_S = 10.0  # for a group whose nodes had room when it was planned
CLUSTER_POLL_S = 1.0  # while the cluster is busy; Ray does not notify of freed resources
PIN_AMOUNT = 0.001  # of a node's address resource, which pins a bundle to the node


def place(
    models: Sequence[Model],
    name_of: Callable[[PlacedReplica], str],
    *,
    wait_s: float = WAIT_S,
    detached: bool = False,
    progress: Progress = lambda line: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> list[tuple[PlacedReplica, PlacementGroup]]:
    """Build a group for every replica, each bundle on its planned node; all or none.

    Raises NeverFits at once, with the plan's explanation, if the request can never fit; PlacementError if it does not
    fit within `wait_s` seconds.
    """
    deadline, reported = time.monotonic() + wait_s, ""
    while True:
        cluster = discover_nodes()
        made = plan(cluster, models)
        reason = made.explain()
        if made.outcome is Outcome.INFEASIBLE:
            raise NeverFits(plan(cluster, models, against=TOTAL).explain())  # current usage does not matter
        left = deadline - time.monotonic()
        if made.fits:
            wanted = [_pinned(placed, name_of(placed), cluster, detached) for placed in made.replicas]
            try:
                groups = build_groups(wanted, timeout_s=min(GROUP_READY_TIMEOUT_S, max(0.0, left)), progress=progress)
                return [(_as_built(placed, group), group) for placed, group in zip(made.replicas, groups, strict=True)]
            except PlacementError as error:  # resources were taken since, or a node is gone
                reason = str(error)
        if left <= 0 or is_cancelled():
            raise PlacementError(f"no room within {wait_s:g} s: {reason}")
        if reason.splitlines()[0] != reported:
            reported = reason.splitlines()[0]
            progress(f"waiting for room: {reported}")
        time.sleep(min(CLUSTER_POLL_S, left))


def place_again(
    model: Model, name: str, *, wait_s: float, detached: bool, progress: Progress, is_cancelled: Callable[[], bool]
) -> tuple[PlacedReplica, PlacementGroup]:
    """Build a group for one replica whose node is gone.

    It did fit before: if it can never fit on the remaining nodes, wait for another node too, such as a spare.
    """
    deadline, reported = time.monotonic() + wait_s, False
    while True:
        left = deadline - time.monotonic()
        try:
            ((placed, group),) = place(
                [replace(model, replicas=1)],
                lambda _: name,
                wait_s=max(0.0, left),
                detached=detached,
                progress=progress,
                is_cancelled=is_cancelled,
            )
            return placed, group
        except NeverFits as error:
            if left <= 0 or is_cancelled():
                raise
            if not reported:
                progress(f"waiting for another node: {str(error).splitlines()[0]}")
            reported = True
        time.sleep(min(CLUSTER_POLL_S, left))


def _as_built(placed: PlacedReplica, group: PlacementGroup) -> PlacedReplica:
    """Return the nodes really used: an old Ray may use another node with the same address, as on a single machine."""
    if RAY_HAS_LABEL_SELECTORS:
        return placed
    return replace(placed, nodes=tuple(get_bundle_node_id(group, index) for index in range(len(placed.nodes))))


def _pinned(placed: PlacedReplica, name: str, cluster: Cluster, detached: bool) -> GroupRequest:
    """Return a group whose bundles are pinned to the planned nodes: by node id, or by address with an old Ray."""
    lifetime = DETACHED if detached else None
    if RAY_HAS_LABEL_SELECTORS:
        selectors = [{NODE_ID_LABEL: node} for node in placed.nodes]
        return GroupRequest(name, placed.bundles, placed.shape.strategy, selectors, lifetime)
    addresses = {
        node.id: next(key for key in node.total if key.startswith("node:") and not key.startswith("node:__"))
        for node in cluster.nodes
    }
    bundles = [
        {**bundle, addresses[node]: PIN_AMOUNT} for bundle, node in zip(placed.bundles, placed.nodes, strict=True)
    ]
    return GroupRequest(name, bundles, placed.shape.strategy, None, lifetime)
