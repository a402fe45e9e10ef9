"""Placement groups: build several at once, fail early if one can never fit, find and remove them by their names."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from muster.placement.errors import PlacementError
from muster.placement.planning.cluster import Cluster
from muster.placement.planning.planner import TOTAL, Outcome, plan
from muster.placement.planning.request import PACK, STRATEGIES, Model
from muster.placement.runtime.nodes import discover_nodes
from muster.placement.runtime.shape import ReplicaBundleSpec

PLACEMENT_GROUP_READY_TIMEOUT_S = 180.0
DETACHED = "detached"
READY_POLL_S = 0.5
RAY_HAS_LABEL_SELECTORS = "bundle_label_selector" in inspect.signature(placement_group).parameters

Progress = Callable[[str], None]


@dataclass(frozen=True)
class GroupRequest:
    """A placement group to build."""

    name: str
    bundles: Sequence[Mapping[str, float]]
    strategy: str
    selectors: Sequence[Mapping[str, str]] | None = None
    lifetime: str | None = DETACHED


def build_pg(
    bundles: Sequence[Mapping[str, float]],
    strategy: str,
    *,
    name: str,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
    ready_timeout_s: float = PLACEMENT_GROUP_READY_TIMEOUT_S,
) -> PlacementGroup:
    """Build a detached group and wait until it is ready; a group that does not become ready is removed."""
    (group,) = build_groups([GroupRequest(name, bundles, strategy, bundle_label_selector)], timeout_s=ready_timeout_s)
    return group


def build_replica_pg(
    spec: ReplicaBundleSpec, *, name: str, ready_timeout_s: float = PLACEMENT_GROUP_READY_TIMEOUT_S
) -> PlacementGroup:
    """Build the group of one replica; see build_pg."""
    return build_pg(
        spec.bundles,
        spec.strategy,
        name=name,
        bundle_label_selector=spec.bundle_label_selector,
        ready_timeout_s=ready_timeout_s,
    )


def build_groups(
    wanted: Sequence[GroupRequest],
    *,
    timeout_s: float = PLACEMENT_GROUP_READY_TIMEOUT_S,
    progress: Progress = lambda line: None,
) -> list[PlacementGroup]:
    """Build all groups, or none, and return them in the order of the request.

    Raises PlacementError at once if a group can never fit, after the timeout if its resources are busy; the message
    names what each node lacks.
    """
    groups: list[PlacementGroup] = []
    try:
        for request in wanted:
            groups.append(_create(request))
        _wait_until_ready(list(zip(wanted, groups, strict=True)), time.monotonic() + timeout_s, timeout_s, progress)
    except BaseException:
        remove_groups(groups)
        raise
    return groups


def _create(request: GroupRequest) -> PlacementGroup:
    options: dict[str, Any] = {"name": request.name, "lifetime": request.lifetime}
    if request.selectors is not None:
        if not RAY_HAS_LABEL_SELECTORS:
            raise PlacementError(f"{request.name}: this Ray ({ray.__version__}) cannot place bundles by label")
        options["bundle_label_selector"] = [dict(selector) for selector in request.selectors]
    group: PlacementGroup = placement_group(
        [dict(bundle) for bundle in request.bundles], strategy=request.strategy, **options
    )
    return group


def _wait_until_ready(
    pending: list[tuple[GroupRequest, PlacementGroup]], deadline: float, timeout_s: float, progress: Progress
) -> None:
    total, reported = len(pending), ""
    while pending:
        if pending[0][1].wait(timeout_seconds=max(0.0, min(READY_POLL_S, deadline - time.monotonic()))):
            pending.pop(0)
            continue
        for request, group in pending:
            if _state(group) == "INFEASIBLE":
                raise PlacementError(
                    f"placement group {request.name!r} can never fit: {explain_group(request, discover_nodes())}"
                )
        pending = [(request, group) for request, group in pending if not group.wait(timeout_seconds=0)]
        line = f"{total - len(pending)} of {total} placement groups are ready"
        if line != reported:
            progress(line)
            reported = line
        if pending and time.monotonic() >= deadline:
            names = ", ".join(request.name for request, _ in pending)
            reason = explain_group(pending[0][0], discover_nodes())
            raise PlacementError(f"after {timeout_s:g} s placement groups are not ready: {names}\n{reason}")


def _state(group: PlacementGroup) -> str:
    state: str = (placement_group_table(group).get("stats") or {}).get("scheduling_state", "")
    return state


def explain_group(request: GroupRequest, cluster: Cluster) -> str:
    """Explain why a group does not fit, bundle by bundle."""
    counts: list[tuple[Mapping[str, float], Mapping[str, str], int]] = []
    for bundle, selector in zip(request.bundles, request.selectors or [{} for _ in request.bundles], strict=True):
        alike = next((i for i, (b, s, _) in enumerate(counts) if b == bundle and s == selector), None)
        if alike is None:
            counts.append((bundle, selector, 1))
        else:
            counts[alike] = bundle, selector, counts[alike][2] + 1
    strategy = request.strategy if request.strategy in STRATEGIES else PACK  # SPREAD is only a preference
    models = [
        Model(
            f"bundles[{number}]" if len(counts) > 1 else request.name,
            pp=count,
            gpus_per_rank=0,
            cpus=0,
            resources=bundle,
            strategy=strategy,
            bundles=count,
            selector=selector,
        )
        for number, (bundle, selector, count) in enumerate(counts)
    ]
    now = plan(cluster, models)
    is_busy = now.outcome in (Outcome.BUSY, Outcome.UNDECIDED)  # else show what empty nodes lack
    return (now if is_busy else plan(cluster, models, against=TOTAL)).explain()


# -- finding and removing -----------------------------------------------------------------------------------------


def remove_groups(groups: Sequence[PlacementGroup]) -> None:
    """Remove groups. Ray kills everything in them; managed programs should be stopped before."""
    for group in groups:
        with contextlib.suppress(Exception):  # Ray's errors for a removed group have no common type
            ray.util.remove_placement_group(group)


def find_groups(wanted: Callable[[str], bool]) -> dict[str, PlacementGroup]:
    """Return the groups of this driver's namespace whose name is wanted and that have not been removed."""
    found = {}
    for id, record in placement_group_table().items():
        name = record["name"]
        if record["state"] == "REMOVED" or not name or not wanted(name):
            continue
        try:
            group = ray.util.get_placement_group(name)
        except ValueError:
            continue  # in another namespace, or removed since
        if group.id.hex() == id:
            found[name] = group
    return found


def find_groups_anywhere(wanted: Callable[[str], bool]) -> dict[str, PlacementGroup]:
    """Return the same for all namespaces; for names that only we use."""
    from ray._raylet import PlacementGroupID  # type: ignore[attr-defined, unused-ignore]

    return {
        record["name"]: PlacementGroup(PlacementGroupID(bytes.fromhex(id)))
        for id, record in placement_group_table().items()
        if record["state"] != "REMOVED" and record["name"] and wanted(record["name"])
    }


def remove_named_pgs_with_prefix(prefix: str) -> int:
    """Remove the groups of this driver's namespace whose names start with `prefix`; return their number."""
    if not prefix:
        raise ValueError("an empty prefix would match every placement group of the cluster")
    groups = find_groups(lambda name: name.startswith(prefix))
    remove_groups(list(groups.values()))
    return len(groups)
