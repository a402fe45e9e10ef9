"""What the leader records of nodes that have failed, at the end of an attempt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.agent.leader.leader_doubles import HOSTS, LeaderParts

from muster.agent.leader.bad_nodes import record_bad_nodes
from muster.rundir.node_memory import NodeMemory


def parts_with_failure(directory: Path, local: bool = False, **fields: Any) -> LeaderParts:
    """A leader that has published that n2 was lost."""
    parts = LeaderParts(directory, **fields)
    Path(parts.attempt.hosts).write_text("\n".join(HOSTS) + "\n")
    parts.context = replace(parts.context, identity=replace(parts.identity, local=local))
    parts.publisher.event("failure", rank=2, host="n2", phase="running", reason="n2 fell silent", log_tail=[])
    return parts


async def test_failed_nodes_are_recorded_published_and_remembered(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    parts = parts_with_failure(tmp_path, node_memory=str(memory))
    await record_bad_nodes(parts.context, dict, hurry=False)
    (record,) = json.loads(Path(parts.attempt.bad_nodes).read_text())
    assert (record["host"], record["kind"], record["reason"]) == ("n2", "lost", "n2 fell silent")
    assert [one.host for one in NodeMemory(str(memory)).evidence()] == ["n2"]
    (event,) = parts.events("bad_node")
    assert (event["host"], event["kind"], event["bad"]) == ("n2", "lost", True)
    assert "the next attempt avoids if it can: n2" in parts.phases()


async def test_virtual_nodes_of_one_machine_are_not_remembered_beyond_the_run(tmp_path: Path) -> None:
    parts = parts_with_failure(tmp_path, local=True, node_memory=str(tmp_path / "memory"))
    await record_bad_nodes(parts.context, dict, hurry=False)
    assert Path(parts.attempt.bad_nodes).exists() and not (tmp_path / "memory").exists()


async def test_the_site_s_command_is_run_for_each_bad_node_and_its_failure_is_none_of_the_run(tmp_path: Path) -> None:
    command = f'echo "$MUSTER_BAD_NODE: $MUSTER_BAD_NODE_REASON" >>{tmp_path}/drained; exit 3'
    parts = parts_with_failure(tmp_path, on_bad_node=command)
    await record_bad_nodes(parts.context, dict, hurry=False)
    assert (tmp_path / "drained").read_text() == "n2: n2 fell silent\n"


async def test_no_command_is_run_if_slurm_ends_the_job_soon(tmp_path: Path) -> None:
    parts = parts_with_failure(tmp_path, on_bad_node=f"touch {tmp_path}/drained")
    await record_bad_nodes(parts.context, dict, hurry=True)
    assert Path(parts.attempt.bad_nodes).exists() and not (tmp_path / "drained").exists()


async def test_a_memory_that_cannot_be_written_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    parts = parts_with_failure(tmp_path, node_memory=str(tmp_path / "file" / "memory"))
    await record_bad_nodes(parts.context, dict, hurry=False)
    assert Path(parts.attempt.bad_nodes).exists()


async def test_an_attempt_without_failures_records_nothing(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path, on_bad_node=f"touch {tmp_path}/drained")
    Path(parts.attempt.hosts).write_text("\n".join(HOSTS) + "\n")
    await record_bad_nodes(parts.context, dict, hurry=False)
    assert not Path(parts.attempt.bad_nodes).exists() and not (tmp_path / "drained").exists()
    assert parts.events("bad_node") == []
