"""`muster status`: print the state of a run from its run directory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from muster.cli.json_output import json_option
from muster.cli.output import print_cancelled_job
from muster.cli.run_argument import resolve_run, run_argument, runs_dir_option
from muster.rundir import RunPaths
from muster.runs.idle import is_idle_cluster, shown_end
from muster.runs.monitor import RunMonitor, finalize_dead, record_silent_end
from muster.runs.next_attempt import next_attempt_message
from muster.runs.queue_wait import pending_message
from muster.runs.status import ENDED_STATES, read_status
from muster.runs.stop import is_live
from muster.views.endpoints import endpoint_line, endpoint_load
from muster.views.hosts import folded
from muster.views.report import ensure_report
from muster.views.sanitize import printable

WATCH_POLL_S = 0.5
# The times of the status as people read them; JSON has the keys.
TIMING_TITLES = {
    "lead_ready": "leader ready",
    "ray_head_ready": "Ray's head ready",
    "ray_ready": "Ray ready",
    "driver_start": "driver start",
    "driver_end": "driver end",
    "ended": "end",
}


@click.command()
@run_argument
@json_option("Print the status as one JSON object.")
@click.option("--watch", is_flag=True, help="Print the status at every change until the run has ended.")
@runs_dir_option
def status(run: str | None, as_json: bool, watch: bool, runs_dir: Path | None) -> None:
    """Show the state of RUN (a run id or job id; default: the newest run), or how it ended."""
    paths, shown = resolve_run(run, runs_dir), None
    print_cancelled_job(paths, finalize_dead(paths))
    monitor = RunMonitor(paths)
    while True:
        current = read_status(paths)
        if current["state"] == "pending":
            current["waiting"] = pending_message(paths)
        text = json.dumps(current) if as_json else "\n".join(_status_lines(current, paths))
        if text != shown:
            click.echo(text)
        shown = text
        attempt = paths.newest_attempt()
        if current["state"] in ENDED_STATES and not (watch and attempt and monitor.will_continue(attempt)):
            ensure_report(paths)
            return
        if not watch:
            return
        time.sleep(WATCH_POLL_S)
        if reason := monitor.poll_dead(paths.newest_attempt()):
            if not is_live(paths):
                return
            record_silent_end(paths, reason)


def _status_lines(status: dict[str, Any], run: RunPaths) -> list[str]:
    """Return the status as text; a cluster of `muster up` is shown without the driver that only waits."""
    idle, live = is_idle_cluster(run), status["state"] not in ENDED_STATES
    job = f", Slurm job {status['job_id']}" if status["job_id"] else ""
    lines = [f"{status['run']}: {status['state']} ({status['backend']}{job})"]
    lines += [f"  {status['waiting']}"] if status.get("waiting") else []
    by_state: dict[str, list[str]] = {}
    for node in status["nodes"]:
        by_state.setdefault(node["state"], []).append(node["host"])
    lines += [f"  nodes {state}: {len(hosts)} ({folded(hosts)})" for state, hosts in by_state.items()]
    for role in ("spare", "excluded"):
        if hosts := [node["host"] for node in status["nodes"] if node.get("role") == role]:
            lines.append(f"  {role}: {len(hosts)} ({folded(hosts)})")
    for node in status["nodes"]:
        if not node.get("healthy", True):
            lines.append(f"  unhealthy: {node['host']}: {node['ailment']}")
    if dropped := status.get("cycles_dropped"):
        lines.append(f"  {dropped} earlier cycles: see `muster report` and the events")
    lines += [f"  cycle {cycle['cycle']} ended: {cycle['reason']}" for cycle in (status.get("cycles") or [])[:-1]]
    driver = status["driver"]
    if idle and driver["state"] == "running":
        lines.append("  cluster is up; it has no driver")
    elif not idle:
        lines.append(f"  driver {driver['state']}{_exit_code(driver)}")
    lines += _ray_lines(status.get("ray"), live)
    lines += [_service_line(name, service) for name, service in sorted((status.get("services") or {}).items())]
    lines += [_request_line(request) for request in status.get("requests") or []]  # an older build has none
    lines += [f"  guest {guest['id']} {guest['state']}{_exit_code(guest)}" for guest in status["guests"]]
    lines.append(f"  {_timing_line(status['timings'])}")
    if status["end_reason"]:
        lines.append(f"  ended: {shown_end(run, status['state'], status['end_reason'])}")
    if next_attempt := next_attempt_message(sequel := status["sequel"] or {}):
        reason = f" ({sequel['end_reason']})" if sequel.get("end_reason") else ""
        lines.append(f"  attempt {status['attempt']} ended{reason}: {next_attempt}")
    if error := status["error"]:
        lines.append(f"  error: {error['host'] or 'the step'} in phase {error['phase']}: {error['reason']}")
        lines += [f"    | {line}" for line in error["log_tail"]]
    lines.append(f"  directory {status['run_dir']}" if "run_dir" in status else "")
    return [printable(line) for line in lines if line]


def _exit_code(program: dict[str, Any]) -> str:
    return f", exit code {program['exit_code']}" if program["exit_code"] is not None else ""


def _request_line(request: dict[str, Any]) -> str:
    """Describe what a program has requested of the run."""
    rank = f"rank {request['process_rank']} on " if request["process_rank"] is not None else ""
    later = "" if request["at_once"] else " at the next restart"
    return (
        f"  cycle {request['cycle']}: {rank}{request['host']} requested {request['kind']}{later}: {request['reason']}"
    )


def _service_line(name: str, service: dict[str, Any]) -> str:
    """Return how many instances are ready, and where; of many, only the first endpoint."""
    urls = [one["url"] for one in service["instances"] if one["state"] == "ready" and one["url"]]
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    if service.get("kind") == "endpoint":
        served = f"{service['ready']} of {service['wanted']} nodes serve it"
        return f"  endpoint {name}: {served}; {endpoint_line(endpoint_load(service['load']))}"
    return f"  service {name}: {service['ready']} of {service['wanted']} ready{f' at {urls[0]}' if urls else ''}{more}"


def _ray_lines(ray: dict[str, Any] | None, live: bool) -> list[str]:
    """Return where Ray is while the run lives, and how often its control service was restarted."""
    if ray is None:
        return []
    restarts = ray.get("gcs_restarts", 0)  # a run of an older build has none
    times = f"control service restarted {restarts} time{'s' if restarts > 1 else ''}"
    if not live:
        return [f"  Ray's {times}"] if restarts else []
    dashboard = ray["dashboard"]
    where = f", dashboard on {dashboard['host']}:{dashboard['port']}" if dashboard else ""
    return [f"  Ray at {ray['address']}{where}{f', {times}' if restarts else ''}"]


def _timing_line(timings: dict[str, float | None]) -> str:
    start = timings["job_start"]
    known = [
        f"{TIMING_TITLES.get(name, name)} {when - start:.1f} s"
        for name, when in timings.items()
        if start and when and name != "job_start"
    ]
    return "since job start: " + ", ".join(known) if known else "not started"
