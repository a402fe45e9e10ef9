"""Mistakes that users make, one by one: each message says what is wrong and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.invocation import Invoke
from tests.fake_slurm import FakeSlurm

import muster

FILES = {
    "job.yaml": "nodes: 2\ncommand: [true]\n",
    "job.sh": "python x.py\n",
    "groups.yaml": "command: [x]\ngroups: {gpu: 8}\n",
    "unknown.yaml": "command: [x]\nnodez: 8\n",
    "site.yaml": "partition: a\ncommnd: [x]\n",
    "placeholder.yaml": "command: [x]\nservices:\n  j: {command: 'serve {foo}', ports: {http: auto}}\n",
}

MISTAKES = [
    (
        "run --ntasks-per-node 8 -- x",
        "unknown option --ntasks-per-node: ",
        "processes on each node with --procs-per-node",
    ),
    ("run --gpus 8 -- x", "unknown option --gpus; use --gpus-per-node", ""),
    ("run -f groups.yaml", "groups.yaml:2: groups: unknown field 'gpu' of a group; did you mean gpus_per_node?", ""),
    ("run -f unknown.yaml", "unknown.yaml:2: unknown field 'nodez'; did you mean nodes, nodelist?", ""),
    ("run job.yaml", "job.yaml is a job file, not a command; did you mean -f job.yaml?", ""),
    ("run -f job.sh", "job.sh: is a shell script, not a job file; ", "keep-your-sbatch"),
    ("status nosuch", "no run or job nosuch: no runs found here; ", "--runs-dir"),
    ("stat", "No such command 'stat'. Did you mean status?", ""),
    (
        "run -N 4 --segment 3 -- x",
        "--segment: 4 nodes are not a multiple of --segment 3; change --nodes or --segment",
        "",
    ),
    ("run --on-node-loss replace -- x", "--on-node-loss: replace needs a spare node; give --spares", ""),
    (
        "run --procs-per-node 2 --on-node-loss replace -- x",
        "--on-node-loss: a gang (--procs-per-node) cannot continue without a lost node; choose restart",
        "",
    ),
    ("run --gpus-per-node 8 --gres gpu:4 -- x", "--gpus-per-node: 8 GPUs per node conflict with --gres gpu:4", ""),
    ("run --gpus-per-node 1 --gres gpu:4 -- x", "--gpus-per-node: 1 GPU per node conflicts with --gres gpu:4", ""),
    (
        "run --container-mounts /a:/b -- x",
        "--container-mounts: has no effect without an image; give --container-image",
        "",
    ),
    ("run --container-image /nope/x.sqsh -- x", "--container-image /nope/x.sqsh: no such file or directory", ""),
    ("run -n 4 -- x", "unknown option -n: Muster runs one agent on every node; ", "with --nodes"),
]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm) -> Path:
    """A directory with files that have mistakes, on a login node."""
    place = tmp_path / "work"
    place.mkdir()
    for name, text in FILES.items():
        (place / name).write_text(text)
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize(("line", "start", "also"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_mistake_is_refused_in_one_line_with_what_was_meant(
    line: str, start: str, also: str, directory: Path, invoke: Invoke, fake_slurm: FakeSlurm
) -> None:
    done = invoke(*line.split())
    assert done.code in (1, 2) and done.out == ""
    assert done.err.startswith(f"muster: error: {start}") and also in done.err and done.err.count("\n") == 1
    assert fake_slurm.called("sbatch") == [] and not (directory / "muster-runs").exists()


def test_an_unknown_setting_has_its_line_and_only_settings_are_suggested(
    directory: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SITE_CONFIG", str(directory / "site.yaml"))
    (line,) = invoke("run", "--", "x").err.splitlines()
    assert "site.yaml:2: unknown field 'commnd'; did you mean comment?" in line


def test_an_unknown_placeholder_of_a_service_is_reported(invoke: Invoke) -> None:
    done = invoke("run", "--dry-run", "-f", "placeholder.yaml")
    assert done.code == 0
    assert "placeholder.yaml:3: services.j.command: {foo} is not a placeholder and stays as it is" in done.err


def test_the_python_api_raises_its_own_error_with_the_nearest_name() -> None:
    with pytest.raises(muster.SpecError, match="nodes: 0 is not valid; allowed: a whole number, 1 or more"):
        muster.JobSpec(command=["x"], nodes=0)
    with pytest.raises(muster.SpecError, match="unknown field 'nodez'; did you mean nodes, nodelist\\?"):
        muster.load_job(nodez=2, command=["x"])


def test_variables_of_ray_sub_are_used_or_reported(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEDICATED_RAY_HEAD", "1")
    monkeypatch.setenv("NEMO_SKILLS_SANDBOX_PORT", "7000")
    done = invoke("run", "--from-env", "--dry-run", "-N", "2", "--", "x")
    assert done.code == 0 and "--dedicated-head-cpus" in done.err
    assert "NEMO_SKILLS_SANDBOX_PORT is set for the job, but starts no sandbox" in done.err


def test_lab_up_takes_nodes_as_run_does(invoke: Invoke) -> None:
    shown = invoke("lab", "up", "--help").out
    assert "-N, --nodes" in shown and "-n," not in shown
    assert "Invalid value for '-n': 0 is not in the range" in invoke("lab", "up", "-n", "0").err
