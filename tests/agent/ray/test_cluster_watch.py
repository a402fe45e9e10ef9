"""What the starter on the head reports: the end of `ray start` and the live nodes, also past a GCS that is away."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.running import wait_for

from muster.agent.ray import starter
from muster.agent.ray.starter import NODE_LABEL, watch_cluster


class Gcs:
    """A port that accepts connections, and what each read of the node table returns; the last one is repeated."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        self.tables: list[list[int] | Exception] = []
        self.clients = 0

    def client(self, address: str) -> Gcs:
        assert address == f"127.0.0.1:{self.address[1]}"
        self.clients += 1
        return self

    def get_all_node_info(self) -> dict[int, Any]:
        table = self.tables.pop(0) if len(self.tables) > 1 else self.tables[0]
        if isinstance(table, Exception):
            raise table
        dead = SimpleNamespace(state=1, labels={NODE_LABEL: "7"})
        foreign = SimpleNamespace(state=0, labels={})
        alive = [SimpleNamespace(state=0, labels={NODE_LABEL: str(index)}) for index in table]
        return dict(enumerate([dead, foreign, *alive]))

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gcs]:
    found = Gcs()
    raylet: Any = ModuleType("ray._raylet")
    raylet.GcsClient = found.client
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray._raylet", raylet)
    yield found
    found.close()


class Starter:
    """The parent process of `ray start`: its reports, and the command that stands for `ray start`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reports: list[dict[str, Any]] = []
        self.stdin_closed = False
        monkeypatch.setattr(starter, "report", lambda event, **fields: self._reports.append({"event": event, **fields}))
        select = SimpleNamespace(select=lambda *_: ([0] if self.stdin_closed else [], [], []))
        monkeypatch.setattr(starter, "select", select)

    def watch(self, gcs: Gcs, command: list[str], nodes: int) -> list[dict[str, Any]]:
        child = subprocess.Popen(command)
        if command != ["sleep", "1000"]:
            # The exit is there before the first look, so the order of the reports does not depend on the machine.
            wait_for("the exit", lambda: os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
        watch_cluster(gcs.address, child.pid, nodes, stored=True)
        if child.poll() is None:
            child.kill()
            child.wait()
        return self._reports


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Starter:
    return Starter(monkeypatch)


def alive(*node_indexes: int) -> dict[str, Any]:
    return {"event": "alive", "ranks": list(node_indexes)}


STARTED = {"event": "started", "code": 0, "stored": True}


def test_each_change_of_the_live_nodes_is_reported_until_all_are_there(gcs: Gcs, starting: Starter) -> None:
    gcs.tables = [[0], [0], [2, 0], [1, 0, 2]]
    assert starting.watch(gcs, ["true"], nodes=3) == [STARTED, alive(0), alive(0, 2), alive(0, 1, 2)]
    assert gcs.clients == 1


def test_a_gcs_that_does_not_answer_is_asked_by_a_new_client(
    gcs: Gcs, starting: Starter, capfd: pytest.CaptureFixture[str]
) -> None:
    gcs.tables = [[0], RuntimeError("it is away"), [0, 1]]
    assert starting.watch(gcs, ["true"], nodes=2) == [STARTED, alive(0), alive(0, 1)]
    assert gcs.clients == 2
    assert "Ray's node table could not be read: it is away" in capfd.readouterr().err


def test_a_ray_start_that_fails_is_reported_at_once(gcs: Gcs, starting: Starter) -> None:
    gcs.close()
    assert starting.watch(gcs, ["false"], nodes=2) == [{"event": "started", "code": 1, "stored": True}]
    assert gcs.clients == 0


def test_the_watch_ends_with_the_agent_while_ray_start_runs(gcs: Gcs, starting: Starter) -> None:
    gcs.tables = [[0]]
    starting.stdin_closed = True
    assert starting.watch(gcs, ["sleep", "1000"], nodes=2) == [alive(0)]


def test_a_client_that_cannot_be_made_is_tried_again(
    gcs: Gcs, starting: Starter, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = []

    def client(address: str) -> Gcs:
        made.append(address)
        if len(made) == 1:
            raise RuntimeError("not yet")
        return gcs

    monkeypatch.setattr(sys.modules["ray._raylet"], "GcsClient", client)
    gcs.tables = [[0]]
    assert starting.watch(gcs, ["true"], nodes=1) == [STARTED, alive(0)]
    assert len(made) == 2 and "Ray's control service does not answer: not yet" in capfd.readouterr().err


def test_reports_are_lines_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(starter, "REPORTS", writing, raising=False)
    starter.report("alive", ranks=[0, 2])
    os.close(writing)
    with os.fdopen(reading) as reports:
        assert [json.loads(line) for line in reports] == [alive(0, 2)]
