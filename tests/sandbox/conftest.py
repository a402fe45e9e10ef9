"""Servers of every isolation level that this machine has, shared by the tests that do not break them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.cluster import Cluster
from tests.sandbox.serving import NOBODY, Served, a_python_for_anybody

LEVELS = ("root", "user", "floor", "root at the floor") if os.getuid() == 0 else ("user", "floor")
EVERY_LEVEL = (*LEVELS, "process")  # the last protects no files, but one program from another as far as it can
# gVisor, of this machine or from `make test-gvisor`. Programs there cost more: only some tests run at these levels.
RUNSC = shutil.which("runsc", path=f"{os.environ['PATH']}:{Path(sys.prefix) / 'gvisor' / 'usr' / 'bin'}")
GVISOR_LEVELS = ("gvisor", "gvisor as user") if os.getuid() == 0 else ("gvisor as user",)
_running: dict[str, Served] = {}


def serve_at(level: str, **settings: Any) -> Served:
    """`root`: full namespaces as root; `user`, `floor`, `process`: without privileges; and root without namespaces."""
    if level in GVISOR_LEVELS:
        return _serve_in_gvisor(level, **settings)
    isolation = {"root": "full", "user": "full", "process": "process"}.get(level, "floor")
    if level == "root" or os.getuid() != 0:
        return Served({"isolation": isolation, **settings})
    python = a_python_for_anybody()
    if python is None:
        pytest.skip("no Python here that another user may run")
    if level == "root at the floor":
        return Served({"isolation": isolation, "python": python, **settings})
    return Served({"isolation": isolation, **settings}, user=NOBODY, python=python)


def _serve_in_gvisor(level: str, **settings: Any) -> Served:
    if RUNSC is None:
        pytest.skip("there is no runsc (gVisor) here: `make test-gvisor` fetches it")
    path = f"{os.path.dirname(RUNSC)}:{os.environ['PATH']}"
    if level == "gvisor" or os.getuid() != 0:
        return Served({"isolation": "gvisor", **settings}, path=path)
    python = a_python_for_anybody()
    if python is None:
        pytest.skip("no Python here that another user may run")
    return Served({"isolation": "gvisor", **settings}, user=NOBODY, python=python, path=path)


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Served]]:
    """One for each level, started when first wanted."""

    def of(level: str) -> Served:
        if level not in _running or _running[level].process.poll() is not None:
            _running[level] = serve_at(level, scratch_mb=32, memory_mb=512, processes=32)
        return _running[level]

    yield of
    for served in _running.values():
        served.clean()
    _running.clear()


@pytest.fixture(params=LEVELS)
def box(request: pytest.FixtureRequest, servers: Callable[[str], Served]) -> Served:
    """A server of each level in turn."""
    return servers(request.param)


@pytest.fixture
def strong(servers: Callable[[str], Served]) -> Served:
    """The strongest level alone, for what does not depend on it."""
    return servers(LEVELS[0])


@pytest.fixture
def own() -> Iterator[Callable[..., Served]]:
    """A server of the test's own: own(level, **settings)."""
    mine: list[Served] = []

    def start(level: str = LEVELS[0], **settings: Any) -> Served:
        mine.append(serve_at(level, **settings))
        return mine[-1]

    yield start
    for served in mine:
        served.clean()


@pytest.fixture(scope="module")
def serve_for_module() -> Iterator[Callable[..., Served]]:
    """A server of the test file's own, at the strongest level: serve_for_module(**settings)."""
    mine: list[Served] = []

    def start(**settings: Any) -> Served:
        mine.append(serve_at(LEVELS[0], **settings))
        return mine[-1]

    yield start
    for served in mine:
        served.clean()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster for this test: start(nodes, **settings)."""
    mine: list[Cluster] = []

    def make(count: int = 1, **settings: Any) -> Cluster:
        mine.append(Cluster(tmp_path, count, **settings))
        return mine[-1]

    yield make
    for cluster in mine:
        cluster.close()
