"""Node names of an attempt, and file names made of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.rundir import RunPaths
from muster.rundir.hosts import host_file_name, host_name, host_names, hosts_by_index


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("n1", "n1"),
        ("gpu-01.cluster", "gpu-01.cluster"),
        ("../../etc/x", "__.._etc_x"),
        ("a b;$(id)", "a_b___id_"),
        ("..", "_"),
    ],
)
def test_a_file_named_after_a_host_stays_where_it_belongs(host: str, name: str) -> None:
    assert host_file_name(host) == name


def test_names_are_by_node_index_and_missing_ones_are_numbered(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    assert host_names(attempt) == [] and host_name(attempt, 1) == "rank-1"
    assert hosts_by_index(attempt, 2) == ["rank-0", "rank-1"]
    os.makedirs(attempt.root)
    Path(attempt.hosts).write_text("n0\nn1\n")
    assert host_names(attempt) == hosts_by_index(attempt, 2) == ["n0", "n1"]
    assert (host_name(attempt, 1), host_name(attempt, 2)) == ("n1", "rank-2")


def test_a_list_of_hosts_of_another_length_is_not_used(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    os.makedirs(attempt.root)
    Path(attempt.hosts).write_text("n0\n")
    assert hosts_by_index(attempt, 2) == ["rank-0", "rank-1"]


def test_names_that_cannot_be_read_are_not_taken_for_missing_ones(tmp_path: Path) -> None:
    """A leader that led under other names than the agents have would keep them until the end of its term."""
    attempt = RunPaths(str(tmp_path)).attempt(0)
    os.makedirs(attempt.hosts)  # reading it fails
    assert host_names(attempt) == []
    with pytest.raises(IsADirectoryError):
        hosts_by_index(attempt, 2)
