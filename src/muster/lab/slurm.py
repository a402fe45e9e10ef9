"""Asks the lab's Slurm about its nodes, and waits until they are as wanted."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

from muster.lab.errors import LabError
from muster.lab.plan import CONTROLLER, LabPlan
from muster.lab.process import ProcessId

_STEP_S = 0.1
#: sinfo appends a mark to the state of a node that does not answer or is in between (`idle*`, `idle~`).
USABLE = frozenset({"idle", "allocated", "mixed"})


def node_states(env: Mapping[str, str]) -> dict[str, str] | None:
    """Each node's state as sinfo says it (`idle`, `down*`, ...), or None if slurmctld does not answer."""
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


def await_controller(plan: LabPlan, env: Mapping[str, str], init: ProcessId, deadline_s: float) -> None:
    """Return when slurmctld answers; raise with the end of its log when it ends or is not there in time."""
    deadline = time.monotonic() + deadline_s
    while node_states(env) is None:
        if not init.alive():
            raise LabError(f"slurmctld has ended.\n{log_tail(plan, CONTROLLER)}")
        if time.monotonic() > deadline:
            raise LabError(f"slurmctld does not answer after {deadline_s:.0f} s.\n{log_tail(plan, CONTROLLER)}")
        time.sleep(_STEP_S)


def await_returned(plan: LabPlan, env: Mapping[str, str], name: str, init: ProcessId, deadline_s: float) -> None:
    """Return when a node that was DOWN has registered again, which ends that (ReturnToService=2)."""
    _await(plan, env, {name: init}, lambda node_state: not node_state.startswith(("down", "unknown")), deadline_s)


def await_usable(plan: LabPlan, env: Mapping[str, str], inits: Mapping[str, ProcessId], deadline_s: float) -> None:
    """Return when Slurm can use these nodes; raise naming those it cannot, with slurmd's log."""
    _await(plan, env, inits, lambda node_state: node_state in USABLE, deadline_s)


def _await(
    plan: LabPlan,
    env: Mapping[str, str],
    inits: Mapping[str, ProcessId],
    fine: Callable[[str], bool],
    deadline_s: float,
) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        states = node_states(env) or {}
        missing = [name for name in inits if not fine(states.get(name, "unknown"))]
        if not missing:
            return
        dead = [name for name in missing if not inits[name].alive()]
        if dead:
            raise LabError(f"slurmd has ended on {', '.join(dead)}.\n{log_tail(plan, dead[0])}")
        if time.monotonic() > deadline:
            listed = ", ".join(f"{name} ({states.get(name, 'unknown')})" for name in missing)
            raise LabError(f"not usable after {deadline_s:.0f} s: {listed}.\n{log_tail(plan, missing[0])}")
        time.sleep(_STEP_S)


def mark_down(env: Mapping[str, str], name: str) -> None:
    """Let Slurm know of a node's death if it has not noticed; else it would wait a minute for jobs long gone to end."""
    _update_node(env, name, "down", "reason=died")


def resume(env: Mapping[str, str], name: str) -> None:
    """Lift a DOWN or DRAIN that Slurm would not lift by itself; no harm where there is none."""
    _update_node(env, name, "resume")


def _update_node(env: Mapping[str, str], name: str, node_state: str, *more: str) -> None:
    argv = ["scontrol", "update", f"nodename={name}", f"state={node_state}", *more]
    subprocess.run(argv, env=env, capture_output=True, check=False)


def log_tail(plan: LabPlan, name: str, lines: int = 15) -> str:
    """The last lines a machine's daemon logged."""
    path = plan.log_file(name)
    source = path if path.exists() else plan.boot_log(name)
    text = source.read_text(errors="replace") if source.exists() else ""
    return f"{source}:\n" + "\n".join(text.splitlines()[-lines:])
