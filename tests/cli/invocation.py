"""Invoke the command line in the test's own process, and make the directory of a run that seems to run."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.running import wait_for
from tests.runs.conftest import FakeRun

from muster.rundir import write_json


@dataclass(frozen=True)
class Finished:
    """A finished command: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str


Invoke = Callable[..., Finished]
StartRun = Callable[..., FakeRun]


def running(run: FakeRun, backend: str = "local", hosts: tuple[str, ...] = ("n0", "n1"), **status: Any) -> FakeRun:
    """Fill the directory of a run whose driver runs on these hosts; the script of a local run is the test's process."""
    if backend == "local":
        run.submitted(kind="local", backend="local", pid=os.getpid(), host=socket.gethostname(), time=time.time())
    else:
        run.submitted(job_id="17", job_ids=["17"], uid=os.geteuid(), script=run.script, time=time.time())
    run.begins()
    os.makedirs(os.path.dirname(run.attempt(0).node_record(0)))
    nodes = [{"rank": index, "host": host, "state": "ready", "role": "active"} for index, host in enumerate(hosts)]
    published = {"backend": backend, "lead": 0, "cycle": 0, "waiting": None, "nodes": nodes, "updated": time.time()}
    run.publishes("running", **{**published, "driver": {"state": "running", "exit_code": None}, **status})
    return run


def node_program(run: FakeRun, body: str, node_index: int = 0) -> Path:
    """Let a shell script be the interpreter of a node's record: a session on the node of a local run starts it."""
    program = Path(run.root) / f"python-{node_index}"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    write_json(run.attempt(0).node_record(node_index), {"python": str(program), "pid": 1})
    return program


@contextmanager
def acting(what: str, condition: Callable[[], Any], act: Callable[[Any], object]) -> Iterator[None]:
    """Beside the body, wait until `condition` returns something true, and call `act` with it."""
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            act(wait_for(what, condition))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failures, failures


def submitted_run(runs_dir: Path) -> FakeRun | None:
    """Return the run that was submitted in this directory; None before there is one."""
    found = [path for path in runs_dir.glob("*") if (path / "submission.json").exists()]
    return FakeRun(str(found[0])) if found else None
