"""`muster nodes`: nodes that have failed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke

from muster.rundir.node_evidence import HALF_LIFE_S, Evidence
from muster.rundir.node_memory import NodeMemory


@pytest.fixture
def memory(tmp_path: Path) -> NodeMemory:
    memory = NodeMemory(str(tmp_path / "memory"))
    now = time.time()
    memory.remember(
        [
            Evidence("n1", "check", "GPU 3 is gone", now - 5, "r", 0),
            Evidence("n2", "lost", "no heartbeat", now - 4 * HALF_LIFE_S, "r", 0),
        ]
    )
    return memory


def test_nodes_are_listed_with_score_and_reason(invoke: Invoke, memory: NodeMemory) -> None:
    lines = invoke("nodes", "--node-memory", memory.directory).out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["node", "score", "bad"],
        ["n1", "1.00", "yes"],
        ["n2", "0.06", "no"],
    ]
    assert "check: GPU 3 is gone" in lines[1]
    assert "n2" not in invoke("nodes", "--bad", "--node-memory", memory.directory).out


def test_the_memory_is_that_of_the_settings(
    invoke: Invoke, memory: NodeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_NODE_MEMORY", memory.directory)
    (first, second) = json.loads(invoke("nodes", "--json").out)
    assert (first["host"], first["bad"], first["evidence"][0]["reason"]) == ("n1", True, "GPU 3 is gone")
    assert (second["host"], second["bad"]) == ("n2", False)


def test_a_forgiven_node_is_not_listed_any_more(invoke: Invoke, memory: NodeMemory) -> None:
    done = invoke("nodes", "forgive", "n1", "n9", "--node-memory", memory.directory)
    assert done.code == 0 and "nothing is recorded of n9" in done.err
    listed = invoke("nodes", "--bad", "--node-memory", memory.directory)
    assert listed.code == 0 and "no node is bad" in listed.err


def test_json_of_forgive_has_known_and_unknown_nodes(invoke: Invoke, memory: NodeMemory) -> None:
    done = invoke("nodes", "forgive", "--json", "n1", "n9", "--node-memory", memory.directory)
    assert json.loads(done.out) == {"forgiven": ["n1"], "unknown": ["n9"]}


def test_without_a_memory_the_command_says_how_to_have_one(invoke: Invoke) -> None:
    done = invoke("nodes")
    assert done.code == 2 and "set node_memory in the user's or site's settings" in done.err
