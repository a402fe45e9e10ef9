"""The pages of exit codes, of `muster status --json` and of events.

The formats are those that tests/formats records from real runs; the names of events are those in the sources.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from tests.docs.reference.markdown import code, heading, table

from muster import exit_codes

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "formats" / "golden"

EXIT_CODES = {
    "BAD_INPUT": "A wrong option or job file; nothing was started.",
    "RESTART_REQUESTED": "A program requested a restart, and none was left. From a program: a request, with "
    "`--control-exit-codes` ([how-to](../how-to/control-requests.md)).",
    "RESTART_FORBIDDEN": "From a program, with `--control-exit-codes`: no restart after this failure.",
    "NODE_EXCLUDED": "From a program, with `--control-exit-codes`: do not use this node again.",
    "NO_PROGRESS": "Cycle after cycle failed without progress (`--no-progress-limit`).",
    "CONTAINER_FAILED": "Internal, of a node: its container did not start.",
    "RUN_DIR_NOT_VISIBLE": "Internal, of a node: it does not see the run directory.",
    "SETUP_FAILED": "Internal, of a node: `--setup` failed.",
    "OLD_PYTHON": "Internal, of a node: its Python is older than 3.9.",
    "HEALTH_CHECK_FAILED": "Internal, of a node: `--health-check` failed.",
    "NO_PYTHON": "Internal, of a node: there is no such Python.",
    "INFRASTRUCTURE_FAILED": "Muster or the cluster failed, not the driver; the message has the node and the reason.",
    "TIMED_OUT": "A program of the sandbox exceeded its timeout, as of timeout(1).",
    "NOT_EXECUTABLE": "The command is not executable.",
    "NOT_STARTED": "The command could not be started.",
    "BY_SIGNAL": "Plus n: signal n ended the driver.",
    "INTERRUPTED": "Interrupted (SIGINT): stopped before the driver ran, or detached with Ctrl-C.",
    "TERMINATED": "Stopped (SIGTERM), by `muster stop` or Slurm, before the driver ran or by the driver's SIGTERM.",
}

STATUS = {
    "run": "The run id.",
    "run_dir": "The run directory.",
    "job_id": "The Slurm job id; null for local runs.",
    "backend": "`slurm` or `local`.",
    "attempt": "The number of the attempt, from 0: starts of the Slurm job.",
    "cycle": "The number of the cycle, from 0: starts of the driver in this attempt.",
    "term": "The number of the leader's term, from 0.",
    "state": "The state of the run, as in [states](core.md#run-states), or `pending`.",
    "waiting": "What the run waits for, as text.",
    "updated": "When the status was written, in seconds since the epoch, as all times.",
    "lead": "The index of the leader's node.",
    "lead_pid": "The process id of the leader's agent.",
    "nodes[]": "All nodes, by index.",
    "nodes[].rank": "The node's index in the allocation.",
    "nodes[].logical_rank": "The node's rank among those in use; null for others.",
    "nodes[].host": "The host name.",
    "nodes[].state": "`expected`, `arrived`, `starting`, `ready`, `stopping`, `gone`, `failed` or `lost`.",
    "nodes[].role": "`active`, `spare`, `excluded` or `waiting`.",
    "nodes[].healthy": "Whether its last health check passed.",
    "driver": "The driver.",
    "driver.state": "The state of the driver.",
    "driver.exit_code": "Its exit code; null while it runs.",
    "ray": "The Ray cluster; null without Ray.",
    "ray.address": "Its address.",
    "ray.dashboard": "The dashboard, with `--dashboard`.",
    "ray.gcs_restarts": "The number of restarts of Ray's control service.",
    "ray.tuning": "Ray's variables in force, by name.",
    "services": "The services, by name.",
    "services.*": "A service.",
    "services.*.gate": "Whether the driver waits for it.",
    "services.*.ready": "The number of ready instances.",
    "services.*.wanted": "The number of requested instances.",
    "services.*.instances": "Its instances, while it runs.",
    "guests": "Live guests (`muster run --in`).",
    "requests": "What [programs have requested](../how-to/control-requests.md): `time`, `cycle`, `rank` and `host` of "
    "the node, `kind` (`exclude_node`, `no_restart`, `request_restart`), `reason`, `at_once` and `process_rank`.",
    "cycles[]": "The last cycles, at most 20.",
    "cycles[].cycle": "The number of the cycle.",
    "cycles[].start": "When it began.",
    "cycles[].end": "When it ended.",
    "cycles[].reason": "Why it ended.",
    "cycles[].members[]": "The hosts in use.",
    "cycles[].spares[]": "The spares.",
    "cycles[].progress": "Whether it made progress.",
    "cycles[].log_start": "The position in `driver.log` at which its output begins.",
    "cycles_dropped": "The number of older cycles that are not listed.",
    "cycles_dropped_without_progress": "The number of these at the end without progress.",
    "sequel": "If another attempt follows: why, and when.",
    "error": "The first failure: node, phase, reason and the last lines of its log.",
    "exit_code": "The exit code of the run; null while it runs.",
    "end_reason": "Why the run ended, as text.",
    "outcome": "How the run ended, as recorded for the job script.",
    "outcome.state": "`succeeded`, `failed` or `stopped`.",
    "outcome.exit_code": "The exit code.",
    "outcome.end_reason": "The reason.",
    "outcome.lost": "Whether a lost node is the reason.",
    "outcome.node": "The host of the failed node.",
    "outcome.rank": "The index of the failed node.",
    "outcome.phase": "The phase in which it failed.",
    "timings": "Times of the last cycle; null for what has not happened.",
    "timings.job_start": "The job script started.",
    "timings.lead_ready": "The leader accepted connections.",
    "timings.ray_head_ready": "Ray's head was up.",
    "timings.ray_ready": "Ray was up on all nodes.",
    "timings.driver_start": "The driver started.",
    "timings.driver_end": "The driver ended.",
    "timings.ended": "The run ended.",
}

EVENTS = {
    "run": ("The run changed its state.", ("state", "reason")),
    "node": ("A node changed.", ("rank", "host", "state", "role", "logical_rank", "healthy")),
    "service": ("An instance of a service changed.", ("service", "rank", "host", "state", "url", "restarts", "reason")),
    "lead": ("Another node leads.", ("rank", "host", "reason")),
    "refused": ("An agent was refused.", ("rank", "host", "reason")),
    "note": ("A node reports something that people should read.", ("rank", "host", "text")),
    "dashboard": ("Ray's dashboard is up; its fields say where.", ()),
    "gcs_restart": ("Ray's control service was restarted.", ("rank", "host", "reason", "seconds", "restarts")),
    "check": ("A built-in check of a node has failed.", ("rank", "host", "ok", "reason")),
    "bad_node": (
        "There is evidence against a node; `bad` if jobs avoid it from now on.",
        ("host", "kind", "reason", "bad"),
    ),
    "control": (
        "A program requested something of the run.",
        ("rank", "host", "kind", "reason", "at_once", "process_rank"),
    ),
    "hang": ("Processes stay in a section for too long; those that lag come first.", ("reason", "processes")),
    "driver_start": ("The driver started.", ("command",)),
    "driver_end": ("The driver ended.", ("exit_code",)),
    "suspended": ("The job was suspended for so many seconds, and goes on.", ("seconds", "text")),
    "stalled": ("The driver made no progress for so many seconds.", ("seconds",)),
    "guest": ("A guest changed its state.", ("id",)),
    "failure": ("A node failed.", ("rank", "host", "phase", "reason", "log_tail")),
    "unended": ("A process could not be killed.", ("rank", "host", "reason")),
    "end": ("The run ended.", ("state", "exit_code", "reason")),
}
COMMON = ("time", "event", "attempt", "term", "cycle")


def codes() -> dict[str, int]:
    """Return the exit codes by name."""
    return {name: value for name, value in vars(exit_codes).items() if name.isupper()}


def exit_codes_page() -> str:
    """Return the text of the page of exit codes."""
    introduction = (
        "The exit code of a run, and of its Slurm job, is that of the driver unless one of these applies. Internal "
        "ones are not exit codes of a run: the job script and the launcher use them."
    )
    rows = [
        [code(str(value)), code(name), EXIT_CODES[name]]
        for name, value in sorted(codes().items(), key=lambda one: one[1])
    ]
    return f"{heading('Exit codes', introduction)}\n{table(('code', 'name', 'meaning'), rows)}\n"


def flattened(value: Any, path: str = "") -> set[str]:
    """Return the paths of all keys of a recorded format: `[]` for lists, `*` for names that users choose."""
    if isinstance(value, dict):
        if path in ("ray.tuning",):
            return {path}
        found = {path} if path else set()
        for name, part in value.items():
            key = "*" if path == "services" else name.rstrip("?")
            found |= flattened(part, f"{path}.{key}" if path else key)
        return found
    if isinstance(value, list) and value:
        inner = flattened(value[0], f"{path}[]")
        return inner | {f"{path}[]"}
    return {path}


def recorded_status() -> set[str]:
    """Return all keys of the recorded status of runs with and without Ray; an empty list counts only if no other is."""
    paths = {
        path for run in ("ray", "gang") for path in flattened(json.loads((GOLDEN / f"{run}-status.json").read_text()))
    }
    return {path for path in paths if f"{path}[]" not in paths}


def events_in_sources() -> dict[str, set[str]]:
    """Return the events that the sources publish, each with its fields as far as the call names them."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "muster" / "agent").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="event"), args=[ast.Constant(value=name), *_]):
                    found.setdefault(name, set()).update(one.arg for one in node.keywords if one.arg)
    return found


def recorded_events() -> dict[str, set[str]]:
    """Return the recorded events with their fields, without those that all events have."""
    found: dict[str, set[str]] = {}
    for run in ("ray", "gang"):
        for name, fields in json.loads((GOLDEN / f"{run}-events.json").read_text()).items():
            found.setdefault(name.rstrip("?"), set()).update({field.rstrip("?") for field in fields} - set(COMMON))
    return found


def page() -> str:
    """Return the text of the page of the status and the events."""
    introduction = (
        "`muster status --json` prints one object. The same status is in `attempt-<n>/status-<term>.json`, events are "
        "lines of `attempt-<n>/events-<term>.jsonl`. Keys are stable; others may be added "
        "([compatibility](compatibility.md))."
    )
    status = table(("key", "meaning"), [[code(name), meaning] for name, meaning in STATUS.items()])
    rows = [
        [code(name), meaning, ", ".join(code(field) for field in fields)] for name, (meaning, fields) in EVENTS.items()
    ]
    common = f"Every event has {', '.join(code(field) for field in COMMON)}."
    events = f"{common}\n\n{table(('event', 'meaning', 'further fields'), rows)}"
    return f"{heading('Status and events', introduction)}\n## Status\n\n{status}\n\n## Events\n\n{events}\n"
