"""After each fault of the table the run ends with the right code, names the node and the cause, and leaves nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand
from tests.lab.faults import FAULTS, Fault
from tests.running import wait_for

LAB = {"nodes": 3}

REPORT = os.environ.get("FAULTS_REPORT")  # a file to add what was seen to
BOUNDED = os.environ.get("FAULTS_BOUNDED")  # set by `make failures`, on a quiet machine: the bounds count too


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_ends_the_run_by_name(slurm: SlurmCommand, fault: Fault, capsys: pytest.CaptureFixture[str]) -> None:
    python = () if "--python" in fault.options else ("--python", slurm.python)
    args = ["run", "-N", str(fault.nodes), *python, *([] if fault.ray else ["--no-ray"]), *fault.options, *fault.driver]
    process, seconds = slurm.start(*args), None
    if fault.inflict is not None:
        run = slurm.wait_for_driver("ready")
        began = time.monotonic()
        fault.inflict(slurm)
        wait_for("the outcome", (run / "attempt-0" / "outcome").exists)
        seconds = time.monotonic() - began
    try:
        out, err = process.communicate(timeout=180)
    finally:
        fault.mend(slurm)
    assert process.returncode == fault.code, err
    assert fault.says in err
    report(fault, seconds, out + err, slurm.cwd)
    if seconds is not None:
        with capsys.disabled():
            print(f"\n  {fault.name}: ended {seconds:.1f} s after it (bound {fault.bound:g} s)")
        assert not BOUNDED or seconds <= (fault.bound or 0)


def report(fault: Fault, seconds: float | None, printed: str, cwd: Path) -> None:
    if REPORT:
        row = {"name": fault.name, "cause": fault.cause, "advice": fault.advice, "seconds": seconds}
        row["output"] = printed.replace(str(cwd), "/home/ann")
        with open(REPORT, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
