"""`muster logs --ray`: files in the archives of nodes, and why there are none."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, StartRun
from tests.runs.conftest import FakeRun

from muster.cli.errors import run_command_line
from muster.cli.main import cli
from muster.rundir import write_json
from muster.rundir.paths import RAY_LOGS_SUFFIX


@pytest.mark.parametrize(
    ("job", "state", "said"),
    [
        ({"ray": False}, "succeeded", "has no Ray"),
        ({"ray_logs": "on-failure"}, "running", "has not ended"),
        ({"ray_logs": "on-failure"}, "succeeded", "`--ray-logs always` keeps them after a success, too"),
    ],
)
def test_logs_of_rays_that_are_not_there_are_explained(
    runs_dir: Path, capsys: pytest.CaptureFixture[str], job: dict[str, object], state: str, said: str
) -> None:
    run = FakeRun(str(runs_dir / "young")).publishes(state)
    write_json(run.job, {"nodes": 1, **job})
    if state == "running":
        os.unlink(run.attempt(0).outcome)
    assert run_command_line(cli, ["logs", "young", "--ray"]) == 1
    assert said in capsys.readouterr().err


@pytest.fixture
def archived(start_run: StartRun) -> FakeRun:
    """A run of two nodes that failed and whose nodes have archives."""
    run = start_run("train")
    attempt = run.attempt(0)
    os.makedirs(attempt.ray_logs_dir())
    Path(attempt.hosts).write_text("n0\nn1\n")
    for host in ("n0", "n1"):
        with tarfile.open(os.path.join(attempt.ray_logs_dir(), host + RAY_LOGS_SUFFIX), "w:gz") as archive:
            for name in ("logs/gcs_server.out", "logs/worker-1.err"):
                data = f"{name} of {host}\n".encode()
                member = tarfile.TarInfo(f"{host}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return run.publishes("failed").ends(1, "x")


def test_files_of_all_nodes_are_listed_with_their_size(archived: FakeRun, invoke: Invoke) -> None:
    lines = invoke("logs", "--ray").out.splitlines()
    assert [line.split()[-1] for line in lines] == [
        f"{host}/logs/{name}" for host in ("n0", "n1") for name in ("gcs_server.out", "worker-1.err")
    ]
    assert lines[0].split()[:2] == ["26", "bytes"]


@pytest.mark.parametrize("node", ["1", "n1"])
@pytest.mark.parametrize("pattern", ["worker-*", "logs/worker-1.err", "n1/logs/worker*"])
def test_matching_files_of_a_node_are_printed(node: str, pattern: str, archived: FakeRun, invoke: Invoke) -> None:
    out = invoke("logs", "--ray", "--node", node, "--file", pattern).out
    assert out == "==> n1/logs/worker-1.err <==\nlogs/worker-1.err of n1\n"


def test_json_lists_files_and_has_their_text(archived: FakeRun, invoke: Invoke) -> None:
    listed = [json.loads(line) for line in invoke("logs", "--ray", "--json").out.splitlines()]
    assert (listed[0]["file"], listed[0]["size"], len(listed)) == ("n0/logs/gcs_server.out", 26, 4)
    (shown,) = invoke("logs", "--ray", "--json", "--node", "n1", "--file", "worker-*").out.splitlines()
    assert json.loads(shown)["text"] == "logs/worker-1.err of n1\n"


def test_a_file_that_no_archive_has_is_an_error(archived: FakeRun, invoke: Invoke) -> None:
    done = invoke("logs", "--ray", "--node", "n1", "--file", "nothing*")
    assert done.code == 1 and "train has no archive of Ray's logs of n1 with a file nothing* in it" in done.err


def test_an_archive_that_is_cut_off_is_named_and_the_others_are_read(archived: FakeRun, invoke: Invoke) -> None:
    broken = Path(archived.attempt(0).ray_logs_dir(), "n0" + RAY_LOGS_SUFFIX)
    broken.write_bytes(b"not an archive")
    done = invoke("logs", "--ray", "--file", "worker-*")
    assert done.code == 0 and f"muster: {broken} cannot be read: " in done.err
    assert "worker-1.err of n1" in done.out and "of n0" not in done.out
