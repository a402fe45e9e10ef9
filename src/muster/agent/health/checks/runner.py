"""Runs the selected checks, each with its deadline. Not in the agent: a thread that waits for a device never ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.agent.health.checks.finding import CheckedNode, Finding, Verdict, failed, skipped
from muster.lifecycle.node_checks import BY_NAME

Check = Callable[[CheckedNode, float], Finding]


@dataclass(frozen=True)
class NodeCheckResult:
    """The finding of one check."""

    name: str
    verdict: Verdict
    reason: str
    measured: float | None
    seconds: float


def run_checks(
    node: CheckedNode,
    selected: Mapping[str, float | None],
    implementations: Mapping[str, Check],
) -> list[NodeCheckResult]:
    """Run the checks at the same time, then those that must run alone; return their results in this order."""
    together = {name: threshold for name, threshold in selected.items() if not BY_NAME[name].compared}
    results = _run_together(node, together, implementations)
    for name in selected:
        if name not in together:  # a measurement must not compete with another
            results += _run_together(node, {name: selected[name]}, implementations)
    return results


def _run_together(
    node: CheckedNode, selected: Mapping[str, float | None], implementations: Mapping[str, Check]
) -> list[NodeCheckResult]:
    began, done = time.monotonic(), queue.SimpleQueue[NodeCheckResult]()
    for name, threshold in selected.items():
        arguments = (name, implementations[name], node, threshold, done)
        threading.Thread(target=_run_check, args=arguments, daemon=True).start()
    results: dict[str, NodeCheckResult] = {}
    while len(results) < len(selected):
        running = [name for name in selected if name not in results]
        first = min(running, key=lambda name: BY_NAME[name].deadline)
        left = began + BY_NAME[first].deadline - time.monotonic()
        try:
            result = done.get(timeout=max(0.0, left))
        except queue.Empty:
            late = failed(f"did not end within {BY_NAME[first].deadline:g} s")
            result = _result(first, late, time.monotonic() - began)
        results.setdefault(result.name, result)
    return [results[name] for name in selected]


def _run_check(
    name: str, check: Check, node: CheckedNode, threshold: float, done: queue.SimpleQueue[NodeCheckResult]
) -> None:
    began = time.monotonic()
    try:
        finding = check(node, threshold)
    except PermissionError as error:
        finding = skipped(f"not permitted: {error}")
    except OSError as error:
        finding = failed(str(error))
    except Exception as error:  # a defect of the check, or output of an unknown form: no reason to leave out a node
        finding = skipped(f"{type(error).__name__}: {error}")
    done.put(_result(name, finding, time.monotonic() - began))


def _result(name: str, finding: Finding, seconds: float) -> NodeCheckResult:
    return NodeCheckResult(name, finding.verdict, finding.reason, finding.measured, round(seconds, 3))
