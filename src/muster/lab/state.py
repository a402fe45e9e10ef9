"""The state file of a lab: its plan and the init process of each machine."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from muster.lab.errors import LabError
from muster.lab.plan import LabPlan
from muster.lab.process import ProcessId


def check_unclaimed(plan: LabPlan) -> None:
    """Refuse a directory with a lab or any other contents, because `down` removes the directory."""
    found = load(plan.state_dir)
    if found is None:
        if plan.state_dir.exists() and (not plan.state_dir.is_dir() or any(plan.state_dir.iterdir())):
            raise LabError(f"state directory {plan.state_dir} exists and is not empty; set MUSTER_LAB_DIR to another")
    elif any(process.alive() for process in found[1].values()):
        raise LabError(f"a lab is already up in {plan.state_dir}; `muster lab down` ends it")
    else:
        raise LabError(f"a lab that no longer runs left {plan.state_dir} behind; `muster lab down` removes it")


def claim(plan: LabPlan) -> None:
    """Create the state directory and file of a new lab; of two concurrent callers, one succeeds."""
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(plan.state_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        raise LabError(f"another lab is starting in {plan.state_dir}") from None
    save(plan, {})


def save(plan: LabPlan, machines: Mapping[str, ProcessId]) -> None:
    """Write the state atomically."""
    record = {
        "plan": plan.to_json(),
        "machines": {name: dataclasses.asdict(process) for name, process in machines.items()},
    }
    temporary = plan.state_file.with_suffix(".new")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(plan.state_file)


def load(state_dir: Path) -> tuple[LabPlan, dict[str, ProcessId]] | None:
    """Return the plan and the machines of the lab in a directory, or None if there is none."""
    path = state_dir / "lab.json"
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise LabError(f"{path} is not readable as a lab's state: {error}") from None
    machines = {name: ProcessId(**process) for name, process in record["machines"].items()}
    return LabPlan.from_json(record["plan"]), machines
