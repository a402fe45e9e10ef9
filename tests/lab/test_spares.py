"""A killed node under `--on-node-loss restart` on a real Slurm: the job goes on with the spare, and is a success."""

from __future__ import annotations

from tests.lab.conftest import SlurmCommand

LAB = {"nodes": 4}
WAIT_ONCE = 'echo "cycle $MUSTER_CYCLE"; [ $MUSTER_CYCLE != 0 ] || sleep 1000'


def test_a_killed_node_costs_a_restart_and_slurm_s_job_completes(slurm: SlurmCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--", "bash", "-c", WAIT_ONCE)
    process = slurm.start(*slurm.run_args(*options, nodes=3))
    run = slurm.wait_for_driver("cycle 0")
    victim, spare = (run / "attempt-0" / "hosts").read_text().split()[1::2]
    slurm.lab.kill_node(victim)
    try:
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        assert [line for line in out.splitlines() if not line.startswith("muster:")] == ["cycle 0", "cycle 1"]
        status = slurm.status()
        first, second = status["cycles"]
        assert (first["spares"], victim in first["members"], victim in first["reason"]) == ([spare], True, True)
        assert len(second["members"]) == 3 and spare in second["members"] and victim not in second["members"]
        job = slurm.ended_job(status["job_id"])
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
        said = (run / "attempt-0" / "steps.log").read_text().splitlines()
        assert not [line for line in said if spare in line and "Exited with exit code" in line], said
    finally:
        slurm.lab.heal(victim)
