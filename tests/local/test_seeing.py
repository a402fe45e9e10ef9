"""The phases of real runs on this machine add up, and reports show the failures."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.local.timelines import seen
from tests.running import MusterCommand, wait_for
from tests.views.timelines import adds_up, phases

from muster.rundir import RunPaths
from muster.views.phases import Phase
from muster.views.record import RunReader
from muster.views.timeline import Timeline, build_timeline

RESTARTS = "if [ $MUSTER_CYCLE = 0 ]; then echo cycle 0; sleep 1000; fi; echo again"


def test_the_phases_of_a_run_without_ray_add_up(muster: MusterCommand) -> None:
    done = muster.local("--", "sleep", "2", nodes=3)
    assert done.returncode == 0, done.stderr
    (attempt,) = seen(muster).attempts
    timings = muster.status()["timings"]
    for node in attempt.nodes:
        assert node.seconds(Phase.DRIVER) == pytest.approx(timings["driver_end"] - timings["driver_start"], abs=1)
    (cycle,) = attempt.cycles
    assert cycle.path[-1].end - attempt.began == pytest.approx(timings["driver_start"] - timings["job_start"], abs=1)


@pytest.mark.slow
@pytest.mark.ray
def test_the_phases_of_a_ray_run_add_up_and_its_path_goes_through_the_head(muster: MusterCommand) -> None:
    done = muster.local("--", "true", nodes=2, ray=True)
    assert done.returncode == 0, done.stderr
    (attempt,) = seen(muster).attempts
    assert {"arrived", "starting"} <= set(phases(attempt.nodes[1]))
    steps = [(step.phase, step.node_index) for step in attempt.cycles[0].path]
    assert [step for step in steps if step[0] is Phase.STARTING] == [(Phase.STARTING, 0), (Phase.STARTING, 1)]


def test_a_node_that_could_not_start_is_launching_until_it_is_lost(muster: MusterCommand) -> None:
    done = muster.local("--setup", "[ $MUSTER_RANK = 0 ] || { echo no module cuda; exit 5; }", "--", "true")
    assert done.returncode == 125
    (attempt,) = seen(muster).attempts
    assert phases(attempt.nodes[1])[-2:] == ["launching", "lost"]
    assert attempt.cycles[0].driver_start is None
    events = (muster.run_dir() / "attempt-0" / "events-0.jsonl").read_text().splitlines()
    (failure,) = [event for event in map(json.loads, events) if event["event"] == "failure"]
    assert (failure["host"], failure["phase"], failure["log_tail"]) == ("node-1", "start", ["no module cuda"])


def test_a_restarted_run_has_two_cycles_and_the_loss_between_them(muster: MusterCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--stop-grace", "1s")
    process = muster.start(*muster.local_args(*options, "--", "bash", "-c", RESTARTS))
    muster.wait_for_driver("cycle 0")
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    (attempt,) = seen(muster).attempts
    assert [cycle.number for cycle in attempt.cycles] == [0, 1]
    assert [(mark.kind, mark.node_index) for mark in attempt.marks if mark.kind in ("lost", "cycle")] == [
        ("lost", 1),
        ("cycle", None),
    ]
    assert attempt.cycles[1].path[0].start == attempt.cycles[0].end
    assert phases(attempt.nodes[1])[-1] == "lost" and "spare" in phases(attempt.nodes[2])


def test_a_driver_that_failed_and_ran_again_has_two_cycles_that_add_up(muster: MusterCommand) -> None:
    driver = "[ $MUSTER_CYCLE != 0 ] || exit 7"
    options = ("--restart-on-driver-failure", "--max-restarts", "1", "--stop-grace", "1s")
    done = muster.local(*options, "--", "bash", "-c", driver)
    assert done.returncode == 0, done.stderr
    (attempt,) = seen(muster).attempts
    first, second = attempt.cycles
    assert "7" in first.reason and second.path[0].start == first.end
    assert second.driver_start is not None and second.path[-1].end == second.driver_start
    for node in attempt.nodes:
        assert [span.phase for span in node.spans].count(Phase.DRIVER) == 2
        assert {span.cycle for span in node.spans} == {0, 1}
    assert "cycle 1, which ran" in muster("report", "--text").stdout


def test_a_run_that_another_leader_took_over_adds_up(muster: MusterCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--stop-grace", "1s")
    process = muster.start(*muster.local_args(*options, "--", "bash", "-c", RESTARTS))
    muster.wait_for_driver("cycle 0")
    os.kill(muster.agent_pid(0), signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert muster.status()["term"] == 1
    (attempt,) = seen(muster).attempts
    assert [mark.kind for mark in attempt.marks if mark.kind in ("lead", "cycle")] == ["lead", "cycle"]
    assert phases(attempt.nodes[0])[-1] == "lost" and attempt.nodes[0].role == "excluded"
    last = attempt.cycles[-1]
    assert last.number == 1 and last.driver_start is not None and last.path[-1].end == last.driver_start


def test_a_live_run_is_seen_up_to_now(muster: MusterCommand) -> None:
    process = muster.start(*muster.local_args("--stop-grace", "1s", "--", "bash", "-c", "echo up; sleep 1000"))
    run = RunPaths(str(muster.wait_for_driver("up")))
    reader = RunReader(run)

    def working() -> Timeline | None:
        found = build_timeline(reader.read())
        adds_up(found)
        return found if all(phases(node)[-1] == "driver" for node in found.attempts[0].nodes) else None

    first = wait_for("the driver's phase", working)
    metrics = muster.run_dir() / "metrics.prom"  # by `muster run`, which follows it
    wait_for("its metrics", lambda: metrics.exists() and "muster_run_state" in metrics.read_text())
    assert build_timeline(reader.read()).wall > first.wall
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert phases(build_timeline(reader.read()).attempts[0].nodes[0])[-1] == "gone"


def test_a_run_that_is_followed_leaves_its_report_and_its_metrics(muster: MusterCommand) -> None:
    done = muster.local("--", "true", nodes=1)
    report = muster.run_dir() / "report.html"
    assert f"report: {report}" in done.stderr and "node-0" in report.read_text()
    assert 'muster_run_nodes{run="' in (muster.run_dir() / "metrics.prom").read_text()


def test_a_run_that_nobody_followed_gets_its_report_from_whoever_looks_next(muster: MusterCommand) -> None:
    started = muster.local("--detach", "--", "true", nodes=1)
    assert started.returncode == 0, started.stderr
    wait_for("its end", (muster.run_dir() / "attempt-0" / "outcome").exists)
    assert not (muster.run_dir() / "report.html").exists()
    assert "succeeded" in muster("status").stdout
    assert (muster.run_dir() / "report.html").exists()


def test_a_report_that_cannot_be_written_changes_nothing_about_the_run(muster: MusterCommand) -> None:
    spoil = "mkdir -p $MUSTER_OUTPUT_DIR/../report.html/x; exit 3"
    done = muster.local("--", "bash", "-c", spoil, nodes=1)
    assert done.returncode == 3 and "the driver exited with 3" in done.stderr


def test_two_real_runs_are_compared(muster: MusterCommand) -> None:
    for name in ("one", "other"):
        assert muster.local("--name", name, "--", "true", nodes=1).returncode == 0
    done = muster("compare", "one", "other")
    assert done.returncode == 0, done.stderr
    assert "from job start to driver" in done.stdout and "one-" in done.stdout
