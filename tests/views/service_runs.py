"""Synthetic runs with services, and their records."""

from __future__ import annotations

from pathlib import Path

from tests.views.synthetic import START, SyntheticRun, load

from muster.views.record import RunReader, RunRecord


def waiting(root: Path, nodes: int = 3) -> SyntheticRun:
    """Ray is up everywhere; the sandbox is ready on the first node alone."""
    run = SyntheticRun(root, nodes, services=("sandbox",))
    run.cycles.append({"cycle": 0, "start": run.now, "end": None, "reason": None})
    run.tell("run", state="gathering")
    for node_index in range(nodes):
        run.node(node_index, "arrived", 1.0)
    run.tell("run", state="starting")
    for node_index in range(nodes):
        run.node(node_index, "starting")
        run.node(node_index, "ready", 2.0)
    run.service("sandbox", 0, after=1.0)
    run.write("starting")
    return run


def read(run: SyntheticRun, now: float = START + 100.0) -> RunRecord:
    return RunReader(run.paths, lambda: now).read()


def busy(root: Path, nodes: int = 4) -> SyntheticRun:
    run = SyntheticRun(root, nodes, services=("sandbox",))
    run.brings_up()
    for node_index in range(nodes):
        queued = 5 if node_index == 2 else 0
        run.service("sandbox", node_index, load=load(8 if node_index == 2 else node_index % 2, queued=queued))
    run.write("running")
    return run
