"""The phases of a run on a real Slurm include the time in the queue and add up."""

from __future__ import annotations

from tests.lab.conftest import SlurmCommand
from tests.running import wait_for
from tests.views.timelines import adds_up, phases

from muster.rundir import RunPaths
from muster.views.phases import Phase
from muster.views.record import RunReader
from muster.views.timeline import build_timeline


def test_the_queue_is_a_phase_and_the_phases_add_up(slurm: SlurmCommand) -> None:
    first = slurm.start(*slurm.run_args("--", "bash", "-c", "echo up; until [ -e go ]; do sleep 0.1; done", nodes=4))
    slurm.wait_for_driver("up")
    (slow,) = slurm.run_dirs()
    second = slurm.start(*slurm.run_args("--", "true", nodes=4))
    waiting = wait_for("the second run", lambda: [run for run in slurm.run_dirs() if run != slow])[0]
    reader = RunReader(RunPaths(str(waiting)))
    wait_for("its submission", (waiting / "submission.json").exists)
    seen = build_timeline(reader.read())
    adds_up(seen)
    assert {node.phase for node in seen.attempts[0].nodes} == {Phase.PENDING}
    (slurm.cwd / "go").touch()
    for process in (first, second):
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    seen = build_timeline(reader.read())
    adds_up(seen)
    (attempt,) = seen.attempts
    assert [node.host for node in attempt.nodes] == ["n1", "n2", "n3", "n4"]
    assert phases(attempt.nodes[3])[:3] == ["submitted", "pending", "launching"]
    assert attempt.nodes[3].seconds(Phase.PENDING) > 0
    assert (waiting / "report.html").exists()
    assert "pending" in slurm("report", "--text", str(waiting)).stdout
