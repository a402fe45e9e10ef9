"""Metrics of runs in Prometheus' text format, for scrapes of `muster ui` and for the node exporter's file. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from muster import prometheus
from muster.views.diagnosis import last_phases, node_seconds
from muster.views.json_values import as_text
from muster.views.phases import Phase
from muster.views.record import RunRecord
from muster.views.sanitize import printable
from muster.views.services import ServiceView, services
from muster.views.timeline import build_timeline

STATES = ("pending", "gathering", "starting", "running", "restarting", "finishing", "succeeded", "failed", "stopped")

FAMILIES = {
    "muster_run_state": "1 for the current state of the run, 0 for the others.",
    "muster_run_wall_seconds": "Seconds from the run's request to its end, or to now.",
    "muster_run_nodes": "Nodes by current phase.",
    "muster_run_bringup_seconds": "Seconds of the critical path to the newest driver, by phase.",
    "muster_run_driver_start_seconds": "Seconds from the job's start to the newest driver's.",
    "muster_run_node_seconds": "Seconds of all nodes by phase, since the job's start.",
    "muster_run_restarts": "Cycles after the first, in this attempt.",
    "muster_run_attempts": "Attempts after the first: requeues, or further jobs of a chain.",
    "muster_run_nodes_lost": "Nodes that failed or were lost, in all attempts.",
    "muster_run_exit_code": "Exit code of an ended run.",
    "muster_run_services_ready": "Ready instances of a service.",
    "muster_run_services_wanted": "Requested instances of a service.",
    "muster_run_service_restarts": "Restarts of a service's instances, in this cycle.",
    "muster_run_endpoint_requests": "Requests to an endpoint, at all nodes.",
    "muster_run_endpoint_failed": "Requests to an endpoint that were lost with their replica or found none.",
    "muster_run_endpoint_outstanding": "Requests of an endpoint that replicas process.",
    "muster_run_endpoint_waiting": "Requests of an endpoint that wait for a replica.",
    "muster_run_endpoint_replica_requests": "Requests that a replica of an endpoint got.",
    "muster_run_endpoint_replica_outstanding": "Requests that a replica of an endpoint processes.",
    "muster_run_endpoint_replica_ready": "Nodes whose proxy sends requests to a replica of an endpoint.",
    "muster_run_sandbox_executions": "Programs and cells executed by a node's sandbox.",
    "muster_run_sandbox_rate": "Executions of a node's sandbox per second.",
    "muster_run_sandbox_busy": "Busy slots of a node's sandbox.",
    "muster_run_sandbox_slots": "Slots of a node's sandbox.",
    "muster_run_sandbox_queued": "Requests that wait for a slot of a node's sandbox.",
}


def metrics(*runs: RunRecord) -> str:
    """Return all metric families of the given runs."""
    found: dict[str, list[prometheus.Sample]] = {name: [] for name in FAMILIES}
    for run in runs:
        for name, labels, value in _samples(run):
            found[name].append(({"run": run.run_id, **labels}, round(value, 3)))
    return prometheus.text(
        line
        for name, samples in found.items()
        if samples
        for line in prometheus.family(name, "gauge", samples, FAMILIES[name])
    )


def _samples(run: RunRecord) -> Iterable[tuple[str, dict[str, str], float]]:
    timeline, state = build_timeline(run), as_text(run.status.get("state"))
    attempt = timeline.attempts[-1]
    yield from (("muster_run_state", {"state": one}, float(one == state)) for one in STATES)
    yield "muster_run_wall_seconds", {}, timeline.wall
    for phase, nodes in last_phases(attempt).items():
        yield "muster_run_nodes", {"phase": phase.value}, len(nodes)
    cycle = next((c for c in reversed(attempt.cycles) if c.driver_start is not None), attempt.cycles[-1])
    for phase in Phase:
        if total := sum(step.seconds for step in cycle.path if step.phase is phase):
            yield "muster_run_bringup_seconds", {"phase": phase.value}, total
    if cycle.driver_start is not None:
        yield "muster_run_driver_start_seconds", {}, cycle.driver_start - attempt.began
    for phase, total in node_seconds(timeline).items():
        yield "muster_run_node_seconds", {"phase": phase.value}, total
    yield "muster_run_restarts", {}, attempt.cycles[-1].number
    yield "muster_run_attempts", {}, attempt.number
    yield "muster_run_nodes_lost", {}, sum(mark.kind == "lost" for one in timeline.attempts for mark in one.marks)
    code = run.status.get("exit_code")
    if isinstance(code, int) and not run.live:
        yield "muster_run_exit_code", {}, code
    for service in services(run):
        yield from _service_samples(service)


def _service_samples(service: ServiceView) -> Iterable[tuple[str, dict[str, str], float]]:
    name = {"service": printable(service.name)}
    yield "muster_run_services_ready", name, service.ready
    yield "muster_run_services_wanted", name, service.wanted
    yield "muster_run_service_restarts", name, service.restarts
    if service.endpoint is not None:
        for field in ("requests", "failed", "outstanding", "waiting"):
            yield f"muster_run_endpoint_{field}", name, getattr(service.endpoint, field)
        for replica in service.endpoint.replicas:
            which = {**name, "replica": printable(replica.address)}
            yield "muster_run_endpoint_replica_requests", which, replica.requests
            yield "muster_run_endpoint_replica_outstanding", which, replica.outstanding
            yield "muster_run_endpoint_replica_ready", which, replica.ready
    for host, load in service.loads:
        where = {**name, "host": printable(host)}
        yield "muster_run_sandbox_executions", where, load.executed
        yield "muster_run_sandbox_rate", where, load.rate
        yield "muster_run_sandbox_busy", where, load.running
        yield "muster_run_sandbox_slots", where, load.slots
        yield "muster_run_sandbox_queued", where, load.queued
