"""What nodes measure through files in a shared directory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from muster.doctor.node.shared_fs_probe import (
    CANARY,
    PRESENT,
    ProbeTimeouts,
    SharedFilesystemProbe,
    poll_interval,
    probe_shared_filesystem,
)

SHORT = ProbeTimeouts(canary=0.1, others=0.3)
LONG = ProbeTimeouts(canary=120, others=120)


def meet(directory: Path, node_indexes: list[int], nodes: int, timeouts: ProbeTimeouts) -> dict[int, dict[str, Any]]:
    with ThreadPoolExecutor(nodes) as pool:
        parts = {
            node_index: pool.submit(SharedFilesystemProbe(str(directory), node_index, nodes, timeouts).run, "yes")
            for node_index in node_indexes
        }
        return {node_index: part.result() for node_index, part in parts.items()}


def test_nodes_that_share_a_directory_meet_and_rank_0_measures_the_others(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    found = meet(tmp_path, [0, 1, 2], 3, LONG)
    assert [found[node_index]["missed"] for node_index in range(3)] == [[], [], []]
    assert set(found[0]["met"]) == {"1", "2"}
    for measured in found[0]["met"].values():
        # One clock: whatever it says, the difference lies within the error it claims.
        assert abs(measured["clock_s"]) <= measured["clock_error_s"]
        assert measured["clock_error_s"] <= measured["delay_s"]


def test_a_node_without_the_canary_reports_it(tmp_path: Path) -> None:
    assert meet(tmp_path, [0], 2, SHORT) == {0: {"seen": False}}
    (tmp_path / CANARY).write_text("of another directory")
    assert meet(tmp_path, [0], 2, SHORT) == {0: {"seen": False}}


def test_who_does_not_come_is_missed(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    found = meet(tmp_path, [0, 1], 3, ProbeTimeouts(canary=30, others=2))
    assert found[0]["missed"] == [2]
    assert set(found[0]["met"]) == {"1"}


def test_nodes_do_not_wait_for_an_absent_node(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    (tmp_path / "absent-0").touch()
    found = meet(tmp_path, [1], 2, ProbeTimeouts(canary=30, others=100_000))
    assert found[1]["missed"] == [0]


def test_many_nodes_look_more_seldom() -> None:
    assert poll_interval(2) == 0.01
    assert 64 / poll_interval(64) < 1000 and poll_interval(10_000) == 0.25


def test_one_node_measures_its_own_files_and_leaves_only_the_sign_of_its_presence(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    (found,) = meet(tmp_path, [0], 1, LONG).values()
    assert found.keys() == {"seen", "canary_s", "small_file_s", "claims"} and found["small_file_s"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {CANARY, f"{PRESENT}0"}


def test_an_error_of_the_filesystem_is_part_of_the_result(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    (tmp_path / f"{PRESENT}0").mkdir()  # a file cannot be renamed over it
    config = {"directory": str(tmp_path), "nodes": 1, "canary": "yes", "timeouts": {"canary": 120, "others": 120}}
    found = probe_shared_filesystem(config, 0)
    assert found["seen"] and found["error"].startswith("Is a directory (")
