"""Evidence against nodes: which failures of an attempt implicate a host, and how much. Pure.

    kind     what happened on the node                                                    weight
    lost     its agent or host was lost, before the end of the run began                  1
    check    the health check or a built-in check failed, or measured an outlier            1
    start    the node did not start, has other resources than requested, or no network    1
    ray      Ray could not be started, or ended                                           0.4
    rank     a process of a gang failed                                                   0.2
    program  a program of the run requested that the node is not used again               1

A host's score is the sum of the weights, each halved every HALF_LIFE_S; from BAD_SCORE on the host is bad.
Not evidence:

- what happens once the run ends: it was stopped, cancelled or reached its time limit, or another failure ended it
- a node that a former leader lost, if it works under a later one
- a failure that more than half of the nodes share: it is the job's, or the network's
- failures of the driver, which is the user's program, and of services
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HALF_LIFE_S = 86400.0
BAD_SCORE = 0.5
WEIGHTS = {"lost": 1.0, "check": 1.0, "start": 1.0, "ray": 0.4, "rank": 0.2, "program": 1.0}
EXPLICIT_KINDS = ("check", "program")  # also in a run on one node
START_PHASES = ("start", "resources", "network")
RAY_PHASE, DRIVER_PHASE, SERVICE_PHASE = "ray", "driver", "service"
CHECK_EVENT = "check"  # a built-in check has failed
EXCLUSION = "exclude_node"  # the request of a program
CHECK_FAILED = "--health-check failed"  # how the prelude reports it
UNAVAILABLE = ("lost", "failed", "expected")  # states of a node that show no sign of life


@dataclass(frozen=True)
class Evidence:
    """One failure that implicates a host."""

    host: str
    kind: str
    reason: str
    time: float
    run: str
    attempt: int

    @classmethod
    def from_record(cls, record: Any) -> Evidence | None:
        """Return the evidence of a record; None if it is damaged."""
        try:
            texts = [record[name] for name in ("host", "kind", "reason", "run")]
            host, kind, reason, run = texts
            if not all(isinstance(text, str) for text in texts) or kind not in WEIGHTS:
                return None
            return cls(host, kind, reason, float(record["time"]), run, int(record["attempt"]))
        except (KeyError, TypeError, ValueError):
            return None


def score(evidence: Iterable[Evidence], now: float) -> float:
    """Return the score of one host.

    >>> lost = Evidence("n1", "lost", "no heartbeat", 0.0, "r", 0)
    >>> score([lost], 0.0), score([lost], 2 * HALF_LIFE_S)
    (1.0, 0.25)
    """
    total = 0.0
    for one in evidence:
        total += WEIGHTS[one.kind] * float(0.5 ** (max(0.0, now - one.time) / HALF_LIFE_S))
    return total


def by_host(evidence: Iterable[Evidence]) -> dict[str, list[Evidence]]:
    found: dict[str, list[Evidence]] = {}
    for one in sorted(evidence, key=lambda one: one.time):
        found.setdefault(one.host, []).append(one)
    return found


def bad_hosts(evidence: Iterable[Evidence], now: float) -> list[str]:
    """Return the hosts whose score is BAD_SCORE or more, in the order of their names."""
    return sorted(host for host, own in by_host(evidence).items() if score(own, now) >= BAD_SCORE)


def assess(
    events: Sequence[Mapping[str, Any]], hosts: Sequence[str], run: str, attempt: int, gang: bool
) -> list[Evidence]:
    """Return the evidence in the events of an attempt. `hosts`: by node index; `gang`: the job is one."""
    ending = [event["time"] for event in events if (event["event"], event.get("state")) == ("run", "finishing")]
    before = [event for event in events if not ending or event["time"] <= ending[0] or event["event"] == CHECK_EVENT]
    last_terms = _last_terms(events)
    found: dict[tuple[str, str, int], Evidence] = {}
    for host, kind, reason, event in _failures(before, hosts, gang):
        term, cycle = int(event.get("term", 0)), int(event.get("cycle", 0))
        if kind in ("lost", "ray") and last_terms.get(host, term) > term:
            continue  # a former leader has lost it, not the run
        found.setdefault((host, kind, cycle), Evidence(host, kind, reason, float(event["time"]), run, attempt))
    return _without_shared(list(found.values()), len(hosts))


def _failures(
    events: Sequence[Mapping[str, Any]], hosts: Sequence[str], gang: bool
) -> Iterable[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield host, kind, reason and event of every failure of a node."""
    restarting, failed, leaders = False, set[str](), {0: hosts[0] if hosts else ""}
    explained = {(event.get("host"), event.get("cycle")) for event in events if event["event"] == "failure"}
    for event in events:
        name, host, state = event["event"], str(event.get("host", "")), event.get("state")
        if name == "run":
            restarting = state == "restarting"
        elif name == "lead":
            term = int(event.get("term", 0))
            former, leaders[term] = leaders.get(term - 1, ""), host
            if term and former and former != host and former not in failed:  # else it has handed over
                yield former, "lost", str(event.get("reason", "")), event
        elif name == "failure":
            kind = _kind(str(event.get("phase", "")), str(event.get("reason", "")), gang)
            if kind is not None and not (kind == "ray" and restarting):
                failed.add(host)
                yield host, kind, str(event.get("reason", "")), event
        elif name == "control" and event.get("kind") == EXCLUSION:
            yield host, "program", str(event.get("reason", "")), event
        elif name == CHECK_EVENT:
            failed.add(host)
            yield host, "check", str(event.get("reason", "")), event
        elif name == "node" and event.get("healthy") is False:
            yield host, "check", str(event.get("ailment", "")), event
        elif name == "node" and state == "lost" and (host, event.get("cycle")) not in explained:
            yield host, "lost", "the node was lost", event


def _kind(phase: str, reason: str, gang: bool) -> str | None:
    """Return the kind of a published failure; None if it implicates no node."""
    if reason.startswith(CHECK_FAILED):
        return "check"
    if phase == DRIVER_PHASE:
        return "rank" if gang else None
    if phase in (SERVICE_PHASE, "lead"):
        return None
    if phase == RAY_PHASE:
        return "ray"
    return "start" if phase in START_PHASES else "lost"


def _last_terms(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the last term in which each host has shown a sign of life."""
    terms: dict[str, int] = {}
    for event in events:
        if event["event"] == "node" and event.get("state") not in UNAVAILABLE:
            host, term = str(event.get("host", "")), int(event.get("term", 0))
            terms[host] = max(term, terms.get(host, term))
    return terms


def _without_shared(evidence: list[Evidence], nodes: int) -> list[Evidence]:
    """Leave out kinds that more than half of the nodes share. The check, or a request, on a single node counts."""
    kinds = [kind for kind in WEIGHTS if nodes > 1 or kind not in EXPLICIT_KINDS]
    shared = {kind for kind in kinds if 2 * len({one.host for one in evidence if one.kind == kind}) > nodes}
    return [one for one in evidence if one.kind not in shared]
