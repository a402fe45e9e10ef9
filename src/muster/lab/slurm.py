"""Query the lab's Slurm about its nodes, and wait until they are in the wanted state."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

from muster.lab.errors import LabError
from muster.lab.plan import CONTROLLER, LabPlan
from muster.lab.process import ProcessId

STATE_POLL_S = 0.1
#: sinfo appends a sign to the state of a node that does not answer or changes its state (`idle*`, `idle~`).
USABLE = frozenset({"idle", "allocated", "mixed"})


def node_states(env: Mapping[str, str]) -> dict[str, str] | None:
    """Return each node's state from sinfo (`idle`, `down*`, ...), or None if slurmctld does not answer."""
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--partition=lab", "--format=%N %T"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    return dict(line.split() for line in done.stdout.splitlines())


def wait_for_controller(plan: LabPlan, env: Mapping[str, str], init: ProcessId, deadline_s: float) -> None:
    """Wait until slurmctld answers; raise with its log tail if it ends or does not answer in time."""
    deadline = time.monotonic() + deadline_s
    while node_states(env) is None:
        if not init.alive():
            raise LabError(f"slurmctld has ended.\n{log_tail(plan, CONTROLLER)}")
        if time.monotonic() > deadline:
            raise LabError(f"slurmctld does not answer after {deadline_s:.0f} s.\n{log_tail(plan, CONTROLLER)}")
        time.sleep(STATE_POLL_S)


def wait_for_return(plan: LabPlan, env: Mapping[str, str], name: str, init: ProcessId, deadline_s: float) -> None:
    """Wait until a DOWN node has registered again, which ends that state (ReturnToService=2)."""
    _wait(plan, env, {name: init}, lambda node_state: not node_state.startswith(("down", "unknown")), deadline_s)


def wait_until_usable(plan: LabPlan, env: Mapping[str, str], inits: Mapping[str, ProcessId], deadline_s: float) -> None:
    """Wait until Slurm can use these nodes; raise with the names of the others and slurmd's log tail."""
    _wait(plan, env, inits, lambda node_state: node_state in USABLE, deadline_s)


def _wait(
    plan: LabPlan,
    env: Mapping[str, str],
    inits: Mapping[str, ProcessId],
    accepted: Callable[[str], bool],
    deadline_s: float,
) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        states = node_states(env) or {}
        missing = [name for name in inits if not accepted(states.get(name, "unknown"))]
        if not missing:
            return
        dead = [name for name in missing if not inits[name].alive()]
        if dead:
            raise LabError(f"slurmd has ended on {', '.join(dead)}.\n{log_tail(plan, dead[0])}")
        if time.monotonic() > deadline:
            listed = ", ".join(f"{name} ({states.get(name, 'unknown')})" for name in missing)
            raise LabError(f"not usable after {deadline_s:.0f} s: {listed}.\n{log_tail(plan, missing[0])}")
        time.sleep(STATE_POLL_S)


def mark_down(env: Mapping[str, str], name: str) -> None:
    """Report a node's death to Slurm; otherwise it would wait a minute for the end of jobs that are gone."""
    _update_node(env, name, "down", "reason=died")


def resume(env: Mapping[str, str], name: str) -> None:
    """Clear a DOWN or DRAIN that Slurm would not clear by itself; harmless in any other state."""
    _update_node(env, name, "resume")


def _update_node(env: Mapping[str, str], name: str, node_state: str, *more: str) -> None:
    argv = ["scontrol", "update", f"nodename={name}", f"state={node_state}", *more]
    subprocess.run(argv, env=env, capture_output=True, check=False)


def log_tail(plan: LabPlan, name: str, lines: int = 15) -> str:
    """Return the last lines of the log of a machine's daemon."""
    path = plan.log_file(name)
    source = path if path.exists() else plan.boot_log(name)
    text = source.read_text(errors="replace") if source.exists() else ""
    return f"{source}:\n" + "\n".join(text.splitlines()[-lines:])
