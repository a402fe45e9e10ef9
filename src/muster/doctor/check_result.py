"""The result of a check: pass, warn, fail or skip, with the finding and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from muster.views.hosts import folded

State = Literal["pass", "warn", "fail", "skip"]
_BY_SEVERITY: tuple[State, ...] = ("skip", "pass", "warn", "fail")

Nodes = Mapping[str, Mapping[str, Any]]
"""The nodes' facts (see node/probe.py) by host name."""


@dataclass(frozen=True)
class CheckResult:
    """One line of the report."""

    check: str
    state: State
    what: str
    advice: str = ""
    """The remedy; given with every warn and fail."""
    nodes: tuple[str, ...] = ()
    """The affected nodes."""


def worst(results: Iterable[CheckResult]) -> State:
    return max((result.state for result in results), key=_BY_SEVERITY.index, default="skip")


def best(results: Sequence[CheckResult]) -> CheckResult:
    return min(results, key=lambda result: _BY_SEVERITY.index(result.state))


def by_value(values: Mapping[str, str]) -> str:
    """Return '2.60.0 on n[1-2]; none on n3', or only the value where all nodes agree."""
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    if len(hosts) == 1:
        return next(iter(hosts))
    return "; ".join(f"{value} on {folded(names)}" for value, names in hosts.items())


def outliers(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts whose value differs from the most frequent one."""
    counts = [(list(values.values()).count(value), value) for value in values.values()]
    usual = max(counts, key=lambda count: count[0])[1] if counts else None
    return tuple(host for host, value in values.items() if value != usual)
