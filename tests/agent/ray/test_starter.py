"""Arguments that the starter refuses, since `ray start` would hang; how `ray start` waits for its node."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from muster.agent.ray import starter
from muster.agent.ray.starter import (
    HTTP2_PREFACE,
    NODE_LABEL,
    hpack_string,
    known_labels,
    raylet_has_exited,
    refusal_reason,
    remove_lost_node,
    storage_arguments,
    unknown_option,
    wait_for_own_node,
)


@pytest.mark.parametrize(
    ("version", "address", "refused"),
    [
        ("2.46.0", "fd77::1", True),
        ("2.46.0", "10.77.0.1", False),
        ("2.49.0", "fd77::1", False),
        ("3.0.0.dev0", "fd77::1", False),
    ],
)
def test_a_ray_that_knows_no_ipv6_is_refused_such_an_address_by_both_names(
    version: str, address: str, refused: bool
) -> None:
    reason = refusal_reason(version, ["--head", f"--node-ip-address={address}", "--labels=a:b"])
    assert (reason is not None) == refused
    if reason:
        assert f"Ray {version}" in reason and address in reason


LABELS = "--labels=muster.io/rank=0,ray.io/gpu-domain=a1b2,site=x"


@pytest.mark.parametrize(
    ("version", "labels"), [("2.46.0", "--labels=muster.io/rank=0,site=x"), ("2.56.0", LABELS), ("3.0.0.dev0", LABELS)]
)
def test_the_gpu_domain_is_a_label_where_ray_has_topology_strategies(version: str, labels: str) -> None:
    assert known_labels(version, ["--head", LABELS, "--verbose"]) == ["--head", labels, "--verbose"]


def test_an_option_that_ray_start_does_not_have_is_refused_by_name() -> None:
    start = SimpleNamespace(params=[SimpleNamespace(opts=["--head"], secondary_opts=[])])
    assert unknown_option("2.60.0", ["--head"], start) is None
    reason = unknown_option("2.60.0", ["--head", "--heap=1"], start)
    assert reason is not None and "--heap" in reason and "2.60.0" in reason and "--ray-start-arg" in reason


class StandIn:
    """Modules of Ray: the node is alive at the third look, or never. Records what was looked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, alive: bool = True) -> None:
        self.looks: list[str] = []
        self._alive = alive
        self.services = SimpleNamespace(get_node=lambda address, node_id: {"address": address, "id": node_id})
        private: Any = ModuleType("ray._private")
        private.services = self.services
        raylet: Any = ModuleType("ray._raylet")
        raylet.GcsClient = lambda address: self
        ray: Any = ModuleType("ray")
        ray.NodeID = SimpleNamespace(from_hex=lambda text: text)
        for name, module in {"ray": ray, "ray._private": private, "ray._raylet": raylet}.items():
            monkeypatch.setitem(sys.modules, name, module)

    def check_alive(self, node_ids: list[str]) -> list[bool]:
        self.looks += node_ids
        return [self._alive and len(self.looks) > 2]


def test_ray_start_looks_often_whether_its_node_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandIn(monkeypatch)
    pauses: list[float] = []
    monkeypatch.setattr(starter, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append))
    wait_for_own_node(nodes=4)
    assert ray.services.get_node("n0:6379", "ab") == {"address": "n0:6379", "id": "ab"}
    assert ray.looks == ["ab"] * 3 and pauses == [starter.OWN_NODE_POLL_S] * 2


def test_the_nodes_of_a_large_cluster_look_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandIn(monkeypatch)
    pauses: list[float] = []
    monkeypatch.setattr(starter, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append))
    wait_for_own_node(nodes=2000)
    ray.services.get_node("n0:6379", "ab")
    assert pauses == [2.0, 2.0]


def test_a_ray_that_cannot_be_asked_waits_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandIn(monkeypatch)
    monkeypatch.delattr(StandIn, "check_alive")
    wait_for_own_node(nodes=4)
    assert ray.services.get_node("n0:6379", "ab")["id"] == "ab"
    del ray.services.get_node
    wait_for_own_node(nodes=4)
    assert not hasattr(ray.services, "get_node")


def test_a_node_that_stays_absent_while_its_raylet_lives_is_left_to_ray_after_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = StandIn(monkeypatch, alive=False)
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(starter, "time", clock)
    wait_for_own_node(nodes=4)
    assert ray.services.get_node("n0:6379", "ab")["id"] == "ab"
    assert now[0] == pytest.approx(starter.OWN_NODE_TIMEOUT_S, abs=1)


def test_a_node_whose_raylet_has_exited_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy("/bin/false", tmp_path / "raylet")
    assert not raylet_has_exited()
    raylet = subprocess.Popen([str(tmp_path / "raylet")])
    os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
    assert raylet_has_exited()
    ray = StandIn(monkeypatch, alive=False)
    wait_for_own_node(nodes=4)
    with pytest.raises(ChildProcessError, match="the raylet has exited"):
        ray.services.get_node("n0:6379", "ab")
    assert raylet.wait() == 1


# -- storage of the GCS ---------------------------------------------------------------------------------------------


@pytest.fixture
def gcs_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The program of a GCS that can store its state in a directory."""
    for name in ("RAY_gcs_storage", "RAY_REDIS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "gcs_server"
    program.write_bytes(b"\x7fELF gcs_storage RAY_gcs_storage_path\0")
    StandIn(monkeypatch).services.GCS_SERVER_EXECUTABLE = str(program)
    return program


def test_a_gcs_stores_its_state_where_its_release_can(gcs_program: Path) -> None:
    assert storage_arguments("/tmp/x/gcs") == [
        '--system-config={"gcs_storage": "rocksdb", "gcs_storage_path": "/tmp/x/gcs"}'
    ]
    assert storage_arguments(None) == []


@pytest.mark.parametrize("content", [b"RAY_gcs_storage only", b""])
def test_a_gcs_of_an_older_release_stores_nothing(gcs_program: Path, content: bytes) -> None:
    gcs_program.write_bytes(content)
    assert storage_arguments("/tmp/x/gcs") == []


def test_a_gcs_whose_program_is_elsewhere_stores_nothing(gcs_program: Path) -> None:
    gcs_program.unlink()
    assert storage_arguments("/tmp/x/gcs") == []


@pytest.mark.parametrize("variable", ["RAY_gcs_storage", "RAY_REDIS_ADDRESS"])
def test_storage_that_the_user_configures_is_not_replaced(
    gcs_program: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "memory")
    assert storage_arguments("/tmp/x/gcs") == []


def test_a_cluster_whose_missing_nodes_may_never_come_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, intervals = [100.0], list[float]()

    def select(*arguments: Any) -> tuple[list[int], list[int], list[int]]:
        intervals.append(arguments[3])
        now[0] += arguments[3]
        return [0] if now[0] > 100.0 + starter.LATE_NODES_S + 10.0 else [], [], []

    for name, value in (
        ("connect", lambda address: object()),
        ("alive_nodes", lambda client: [0, 1]),
        ("exit_code", lambda child: 0),
        ("report", lambda event, **fields: None),
        ("time", SimpleNamespace(monotonic=lambda: now[0])),
        ("select", SimpleNamespace(select=select)),
    ):
        monkeypatch.setattr(starter, name, value)
    starter.watch_cluster(("127.0.0.1", 1), 1, 3, False)
    assert (intervals[0], intervals[-1]) == (starter.NODE_TABLE_POLL_S, starter.LATE_NODE_POLL_S)


class NodeTable:
    """Ray's node table behind a port that reads requests: nodes 1 and 2 are alive until `answers` removals arrived."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: bool = True) -> None:
        self._answers = answers
        self.dead: list[bytes] = []
        self.received = b""
        self.cluster_id = SimpleNamespace(hex=lambda: "c1")
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        raylet: Any = ModuleType("ray._raylet")
        raylet.GcsClient = lambda address: self
        messages: Any = ModuleType("ray.core.generated.gcs_service_pb2")
        messages.UnregisterNodeRequest = lambda node_id, node_death_info: SimpleNamespace(
            SerializeToString=lambda: b"remove " + node_id
        )
        for module in (raylet, messages, *(ModuleType(name) for name in ("ray", "ray.core", "ray.core.generated"))):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def get_all_node_info(self) -> dict[bytes, Any]:
        ids = {b"id-1": "1", b"id-2": "2"}
        return {
            node_id: SimpleNamespace(node_id=node_id, state=int(node_id in self.dead), labels={NODE_LABEL: label})
            for node_id, label in ids.items()
        }

    def _serve(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        with connection:
            while data := connection.recv(4096):
                self.received += data
                if self._answers and b"remove id-1" in self.received:
                    self.dead.append(b"id-1")

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


def frames_of(received: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return kind, flags, stream and payload of each frame."""
    assert received.startswith(HTTP2_PREFACE)
    rest, frames = received[len(HTTP2_PREFACE) :], []
    while rest:
        size = int.from_bytes(rest[:3], "big")
        frames.append((rest[3], rest[4], int.from_bytes(rest[5:9], "big"), rest[9 : 9 + size]))
        rest = rest[9 + size :]
    return frames


def headers_of(block: bytes) -> dict[str, str]:
    """Return the headers of a block in which each one is a literal whose strings are shorter than 127 bytes."""
    strings = []
    while block:
        for start in (1, 0):  # the literal's first byte, then name and value with their lengths
            assert not start or block[0] == 0
            size = block[start]
            strings.append(block[start + 1 : start + 1 + size].decode())
            block = block[start + 1 + size :]
    return dict(zip(strings[::2], strings[1::2], strict=True))


def test_a_lost_node_is_removed_from_ray_s_table_by_a_call_with_the_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("t0\n")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    table = NodeTable(monkeypatch)
    remove_lost_node(table.address, 1)
    table.close()
    assert table.dead == [b"id-1"] and capfd.readouterr().err == ""
    settings, headers, data = frames_of(table.received)
    assert settings == (starter.SETTINGS_FRAME, 0, 0, b"")
    assert headers[:3] == (starter.HEADERS_FRAME, starter.END_HEADERS, 1)
    assert data == (starter.DATA_FRAME, starter.END_STREAM, 1, b"\0\0\0\0\x0bremove id-1")
    assert headers_of(headers[3]) == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/ray.rpc.NodeInfoGcsService/UnregisterNode",
        ":authority": table.address,
        "te": "trailers",
        "content-type": "application/grpc",
        "ray_cluster_id": "c1",
        "authorization": "Bearer t0",
    }


def test_a_node_that_cannot_be_removed_delays_the_start_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(starter, "REMOVAL_TIMEOUT_S", 0.2)
    table = NodeTable(monkeypatch, answers=False)
    remove_lost_node(table.address, 1)
    table.close()
    assert "removing the lost node 1 is left to Ray's health check" in capfd.readouterr().err


def test_a_node_that_ray_does_not_list_as_alive_needs_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NodeTable(monkeypatch)
    remove_lost_node(table.address, 3)
    table.close()
    assert table.received == b""


@pytest.mark.parametrize(("size", "encoded"), [(126, [126]), (127, [127, 0]), (1337, [127, 186, 9])])
def test_lengths_of_header_strings_are_encoded_as_in_http_2(size: int, encoded: list[int]) -> None:
    assert hpack_string("x" * size) == bytes(encoded) + b"x" * size
