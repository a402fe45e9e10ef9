"""What a check found: pass, warn, fail or skip, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from muster.views.hosts import folded

State = Literal["pass", "warn", "fail", "skip"]
_BY_WEIGHT: tuple[State, ...] = ("skip", "pass", "warn", "fail")

Nodes = Mapping[str, Mapping[str, Any]]
"""The nodes' facts (see node/probe.py) by host name."""


@dataclass(frozen=True)
class CheckResult:
    """One line of the report."""

    check: str
    state: State
    what: str
    advice: str = ""
    """What to do; there for every warn and fail."""
    nodes: tuple[str, ...] = ()
    """The nodes that are to blame."""


def worst(results: Iterable[CheckResult]) -> State:
    return max((result.state for result in results), key=_BY_WEIGHT.index, default="skip")


def best(results: Sequence[CheckResult]) -> CheckResult:
    return min(results, key=lambda result: _BY_WEIGHT.index(result.state))


def by_value(values: Mapping[str, str]) -> str:
    """'2.60.0 on n[1-2]; none on n3', or the value alone where all nodes agree."""
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    if len(hosts) == 1:
        return next(iter(hosts))
    return "; ".join(f"{value} on {folded(names)}" for value, names in hosts.items())


def odd_ones(values: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts that differ from what most have."""
    counts = [(list(values.values()).count(value), value) for value in values.values()]
    usual = max(counts, key=lambda count: count[0])[1] if counts else None
    return tuple(host for host, value in values.items() if value != usual)
