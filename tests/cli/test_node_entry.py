"""Commands that enter a node: which node, and why one cannot be entered."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import click
import pytest
from tests.cli.invocation import StartRun

from muster.cli.node_entry import NodeCommand, entry_for, exec_on_node, find_node, node_command, node_options
from muster.rundir import write_json
from muster.rundir.node_groups import NodeGroup


@click.command("attach", cls=NodeCommand)
@node_options
@click.pass_context
def attach(ctx: click.Context, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Enter a node."""
    return options, node_command(ctx)


@pytest.mark.parametrize(
    ("words", "run", "command"),
    [
        ([], None, []),
        (["train"], "train", []),
        (["train", "--", "ls", "--node", "1", "--"], "train", ["ls", "--node", "1", "--"]),
        (["--", "ls"], None, ["ls"]),
    ],
)
def test_words_after_two_dashes_are_the_command(words: list[str], run: str | None, command: list[str]) -> None:
    assert attach.main(words, standalone_mode=False) == ({"run": run, "node": None, "runs_dir": None}, command)


def test_a_word_too_many_before_the_dashes_is_refused() -> None:
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        attach.main(["train", "ls"], standalone_mode=False)


@pytest.mark.parametrize(("name", "index"), [(None, 1), ("0", 0), ("1", 1), ("n0", 0), ("n1.cluster", 1), ("n1", 1)])
def test_a_node_is_found_by_index_host_or_short_host_and_is_the_leader_by_default(
    name: str | None, index: int, start_run: StartRun
) -> None:
    run = start_run("train", hosts=("n0", "n1.cluster"), lead=1)
    entry = entry_for(None, name, None)
    assert (entry.run.run_id, entry.node.node_index) == ("train", index)
    assert entry.command(pty=False)[-5:] == ["attach", run.attempt(0).root, str(index), "0", "-"]


def test_a_node_that_does_not_exist_is_refused_with_those_that_do(start_run: StartRun) -> None:
    start_run("train")
    with pytest.raises(click.UsageError, match=re.escape("--node 7: train has nodes 0 to 1: n0, n1")):
        entry_for("train", "7", None)


def test_a_run_on_another_machine_is_refused_with_its_host(start_run: StartRun) -> None:
    start_run("train").submitted(kind="local", backend="local", pid=1, host="elsewhere")
    with pytest.raises(click.ClickException, match="train runs on elsewhere, not on this machine: run this command"):
        entry_for("train", None, None)


@pytest.mark.parametrize(
    ("state", "told"),
    [("gathering", "is still gathering; `muster status --watch train`"), ("finishing", "is ending")],
)
def test_a_run_that_does_not_run_is_refused_with_its_state(state: str, told: str, start_run: StartRun) -> None:
    start_run("train").publishes(state)
    with pytest.raises(click.ClickException, match=re.escape(told)):
        entry_for(None, None, None)


def test_a_node_of_a_job_is_entered_by_a_step_of_the_job_that_runs_now(start_run: StartRun) -> None:
    run = start_run("train", "slurm", ray={"address": "n0:6379"})
    write_json(run.attempt(0).slurm_job, {"job_id": "18"})  # the second job of a chain
    write_json(run.attempt(0).node_record(1), {"python": "/opt/python", "pid": 7})
    command = entry_for("17", "1", None).command(pty=True)
    assert command[0] == "srun" and {"--jobid=18", "--nodelist=n1", "--pty"} <= set(command)
    assert "/opt/python" in command and command[-1] == "n0:6379"


def test_a_node_of_a_hetjob_is_entered_by_its_group(start_run: StartRun) -> None:
    run = start_run("train", "slurm", hosts=("a", "b", "c"))
    groups = [asdict(NodeGroup("cpu", 1)), asdict(NodeGroup("gpu", 2))]
    write_json(run.job, {"nodes": 3, "groups": groups})
    attempt, status = run.attempt(0), {"nodes": [{"rank": index, "host": host} for index, host in enumerate("abc")]}
    assert [find_node(name, run, attempt, status).group for name in "abc"] == [0, 1, 1]
    assert "--het-group=1" in entry_for("train", "c", None).command(pty=False)


def test_a_program_that_is_not_here_is_an_error_with_a_remedy(start_run: StartRun) -> None:
    run = start_run("train")
    write_json(run.attempt(0).node_record(0), {"python": "/nonexistent/python", "pid": 1})
    told = r"/nonexistent/python could not be run on \S+: No such file or directory; run this command on a host where"
    with pytest.raises(click.ClickException, match=told):
        exec_on_node(entry_for("train", None, None), ["true"], pty=False)
