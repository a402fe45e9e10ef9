"""Node names of an attempt, and file names made of them."""

from __future__ import annotations

import pytest

from muster.rundir.hosts import host_file_name


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
