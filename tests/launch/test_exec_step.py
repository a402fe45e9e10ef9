"""The step of a session on a node of a running job, and the tunnel to it."""

from __future__ import annotations

from dataclasses import replace

from muster.launch.containers.render import Container
from muster.launch.exec_step import ExecStep, TargetNode, session_environment
from muster.rundir import RunPaths
from muster.rundir.session_command import SESSION_COMMAND
from muster.runs.tunnels import Tunnel

RUN = RunPaths("/lustre/muster-runs/up-20260101T000000-ab12")
ENTRY = ExecStep(RUN, RUN.attempt(1), TargetNode(2, "n3", "/envs/x/bin/python", 77), "4711", 0, "10.0.0.1:6379")


def test_under_slurm_a_session_is_one_overlapping_step_on_the_node() -> None:
    argv = ENTRY.command(pty=False)
    assert argv[0] == "srun" and "--pty" not in argv
    assert {"--jobid=4711", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n3"} <= set(argv)
    inside = argv[argv.index("/envs/x/bin/python") :]
    assert inside[1:5] == ["-I", "-S", f"{RUN.root}/agent.pyz", "attach"]
    assert inside[5:] == [f"{RUN.root}/attempt-1", "2", "0", "10.0.0.1:6379"]


def test_a_session_has_a_pty_only_at_a_terminal() -> None:
    assert "--pty" in ENTRY.command(pty=True)


def test_a_local_session_is_not_a_step() -> None:
    argv = replace(ENTRY, job_id=None, ray_address=None).command(pty=True)
    assert argv[0] == "/envs/x/bin/python" and argv[-1] == "-"


def test_srun_sees_nothing_of_the_allocation_that_the_caller_is_in() -> None:
    env = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "9", "SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}
    seen = session_environment(env, ["ls", "-l"])
    assert seen == {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin", SESSION_COMMAND: '["ls", "-l"]'}


def test_a_tunnel_ends_on_the_node_s_loopback_and_goes_through_the_login_node() -> None:
    tunnel = Tunnel("n3", 8265)
    assert tunnel.ssh(8265) == ["ssh", "-N", "-L", "8265:127.0.0.1:8265", "n3"]
    assert tunnel.ssh(9000, "ann@login") == ["ssh", "-N", "-L", "9000:127.0.0.1:8265", "-J", "ann@login", "n3"]


def test_in_a_job_of_groups_the_step_goes_to_the_node_s_own_group() -> None:
    grouped = replace(ENTRY, node=replace(ENTRY.node, group=1))
    assert "--het-group=1" in grouped.command(pty=False)
    assert not any(word.startswith("--het-group") for word in ENTRY.command(pty=False))


def test_in_a_container_the_command_goes_through_the_runtime() -> None:
    inside = replace(ENTRY, container=Container("apptainer", "apptainer", "/x.sif", True, (), "/w", ()))
    command = inside.command(pty=False)
    joining = next(word for word in command if word.endswith('exec apptainer exec --pwd /w /x.sif "$@"\n'))
    assert command.index(joining) < command.index("/envs/x/bin/python")
