"""Owners of programs and names: whether a process is alive is asked on its node. On real Ray."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from muster.placement.planning.cluster import Node

ray = pytest.importorskip("ray")

from muster.placement.runtime.lease import NameLease, owner_of
from muster.placement.runtime.owner import is_alive

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def test_whether_an_owner_lives_is_asked_of_its_node(worker: Node) -> None:
    NameLease.acquire("asked")
    here = owner_of("asked", 1)
    assert here is not None and here.pid == os.getpid() and is_alive(here)
    there = replace(here, node=worker.id)  # which is on this machine too, and has to be asked by Ray
    assert is_alive(there) is True
    assert is_alive(replace(there, began=here.began + 1)) is False  # another process with its number
    assert is_alive(replace(there, pids="pid:[1]")) is None  # numbers of another namespace say nothing
    assert is_alive(replace(there, node="f" * 56)) is False  # a node that is not there
