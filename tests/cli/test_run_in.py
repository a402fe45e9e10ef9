"""`muster run --in`: the request for a guest session, its output, its exit code, and refused options."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, StartRun, acting
from tests.runs.conftest import FakeRun

from muster.rundir import write_json


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the signal handlers that following a guest replaces."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(signum) for signum in signals]
    yield
    for signum, handler in zip(signals, before, strict=True):
        signal.signal(signum, handler)


def requested(run: FakeRun) -> Path | None:
    """Return the request of the only guest; None before there is one."""
    return next(iter(Path(run.attempt(0).guests_dir).glob("*.json")), None)


def test_a_detached_guest_is_requested_and_named(start_run: StartRun, invoke: Invoke, tmp_path: Path) -> None:
    run = start_run("train")
    (tmp_path / "there").mkdir()
    words = ["--env", "KEY=value", "--workdir", "there", "--detach", "--", "python", "x.py"]
    done = invoke("run", "--in", "train", *words)
    request = requested(run)
    assert request is not None and request.stat().st_mode & 0o777 == 0o600
    asked = json.loads(request.read_text())
    assert (asked["command"], asked["env"]) == (["python", "x.py"], {"KEY": "value"})
    assert asked["workdir"] == os.path.realpath(tmp_path / "there")
    assert (done.code, done.out) == (0, f"train\t{request.stem}\n")
    assert f"its output goes to {run.attempt(0).guest_log(request.stem)}" in done.err


def test_a_followed_guest_s_output_and_exit_code_are_passed_on(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")

    def end(request: Path) -> None:
        Path(run.attempt(0).guest_log(request.stem)).write_text("hello\n")
        write_json(run.attempt(0).guest_outcome(request.stem), {"exit_code": 9})

    with acting("the request", lambda: requested(run), end):
        done = invoke("run", "--in", "train", "--", "true")
    assert (done.code, done.out, done.err) == (9, "hello\n", "")


def test_a_signal_ends_the_guest_and_not_the_cluster(start_run: StartRun, invoke: Invoke) -> None:
    run, before = start_run("train"), signal.getsignal(signal.SIGHUP)  # the last one that is replaced

    def terminate(request: Path) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def end(stop: Path) -> None:
        write_json(run.attempt(0).guest_outcome(stop.stem), {"exit_code": 143})

    def stop_requested() -> Path | None:
        return next(iter(Path(run.attempt(0).guests_dir).glob("*.stop")), None)

    def handler_is_set() -> Path | None:
        return requested(run) if signal.getsignal(signal.SIGHUP) is not before else None

    with (
        acting("the handlers and the request", handler_is_set, terminate),
        acting("the request to stop", stop_requested, end),
    ):
        done = invoke("run", "--in", "train", "--", "true")
    assert done.code == 143 and "received SIGTERM: ending the guest; the cluster continues" in done.err
    assert not os.path.exists(run.attempt(0).stop_request)


def test_a_guest_that_ends_with_its_cluster_is_an_error_of_the_infrastructure(
    start_run: StartRun, invoke: Invoke
) -> None:
    run = start_run("train")
    with acting("the request", lambda: requested(run), lambda _: run.ends(125, "lost")):
        done = invoke("run", "--in", "train", "--", "true")
    assert done.code == 125 and "muster: error: train ended before guest " in done.err


@pytest.mark.parametrize("words", [["--nodes", "2"], ["--from-env"], ["--dry-run"], ["--json"], ["-f", "job.yaml"]])
def test_an_option_about_the_cluster_is_refused(words: list[str], start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    done = invoke("run", "--in", "train", *words, "--", "true")
    name = {"-f": "--file"}.get(words[0], words[0])
    assert done.code == 2 and f"{name}: not with --in, which uses a cluster as it is" in done.err
    assert requested(run) is None


def test_a_working_directory_that_does_not_exist_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    done = invoke("run", "--in", "train", "--workdir", "nowhere", "--", "true")
    assert done.code == 2 and "--workdir nowhere: no such directory" in done.err


def test_a_run_that_does_not_run_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train").publishes("finishing")
    done = invoke("run", "--in", "train", "--", "true")
    assert done.code == 1 and "train is ending" in done.err
