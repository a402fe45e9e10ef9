"""`muster logs`: which log is printed, as it is and as it grows, and which options exclude each other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, StartRun

from muster.cli import logs
from muster.process import Log
from muster.process.capture import SegmentedLog
from muster.process.log_segments import MIN_SEGMENT_BYTES, SEGMENT_COUNT, find_segments
from muster.rundir import write_json


def test_the_newest_run_s_driver_is_the_default(start_run: StartRun, invoke: Invoke) -> None:
    start_run("old").says("old\n")
    start_run("new").says("new\n")
    assert invoke("logs").out == invoke("logs", "new", "--driver").out == "new\n"
    assert invoke("logs", "old").out == "old\n"


def test_output_is_printed_unchanged(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    Path(run.attempt(0).driver_log).write_bytes("ü\x1b[31m\n".encode())
    assert invoke("logs").out == "ü\x1b[31m\n"


def test_the_log_of_a_node_is_printed(start_run: StartRun, invoke: Invoke) -> None:
    Path(start_run("train").attempt(0).node_log(1)).write_text("agent of n1\n")
    assert invoke("logs", "--node", "1").out == "agent of n1\n"


def test_a_node_may_be_given_by_host_name(start_run: StartRun, invoke: Invoke) -> None:
    attempt = start_run("train").attempt(0)
    Path(attempt.hosts).write_text("n0\nn1\n")
    Path(attempt.node_log(1)).write_text("agent of n1\n")
    assert invoke("logs", "--node", "n1").out == "agent of n1\n"
    done = invoke("logs", "--node", "n7")
    assert done.code == 2 and "train has no such node; give the node's index or its host name: n0, n1" in done.err


def test_json_has_an_object_for_each_line(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    Path(run.attempt(0).driver_log).write_bytes("ü\n\n".encode() + b"\xff\nthe rest")
    lines = [json.loads(line) for line in invoke("logs", "--json").out.splitlines()]
    assert [line.get("text") for line in lines] == ["ü", "", None, "the rest"]
    assert lines[2] == {"event": "output", "base64": "/w=="}


def test_a_node_without_a_log_is_an_error_that_names_the_number_of_nodes(start_run: StartRun, invoke: Invoke) -> None:
    write_json(start_run("train").job, {"nodes": 2, "spares": 1})
    done = invoke("logs", "--node", "7")
    assert done.code == 1 and "train has no log of a node with index 7; its job has 3 nodes" in done.err


def test_a_rank_s_newest_cycle_is_printed_unless_another_is_chosen(start_run: StartRun, invoke: Invoke) -> None:
    attempt = start_run("train").attempt(0)
    for cycle in (0, 1):
        os.makedirs(os.path.dirname(attempt.rank_log(3, cycle)))
        Path(attempt.rank_log(3, cycle)).write_text(f"cycle {cycle}\n")
    assert invoke("logs", "--rank", "3").out == "cycle 1\n"
    assert invoke("logs", "--rank", "3", "--cycle", "0").out == "cycle 0\n"
    done = invoke("logs", "--rank", "3", "--cycle", "2")
    assert done.code == 1 and "train has no log of rank 3 in cycle 2; only runs with --procs-per-node" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--driver", "--node", "1"], "--driver excludes --node and --ray"),
        (["--driver", "--ray"], "--driver excludes --node and --ray"),
        (["--rank", "0", "--node", "1"], "--rank excludes --driver, --node and --ray"),
        (["--cycle", "0", "--node", "1"], "it excludes --node and --ray"),
        (["--cycle", "0", "--ray"], "it excludes --node and --ray"),
        (["--tail", "3", "--ray"], "--ray excludes --tail"),
        (["--ray", "--follow"], "--ray excludes --follow"),
        (["--file", "worker-*"], "give --ray, too"),
        (["--node", "n1"], "give the node's index"),
        (["--rank", "-1"], "is not in the range x>=0"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    words: list[str], told: str, start_run: StartRun, invoke: Invoke
) -> None:
    start_run("train").says("output\n")
    done = invoke("logs", *words)
    assert (done.code, done.out) == (2, "") and told in done.err


def test_one_cycle_of_the_driver_s_output_is_printed(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train").says("one\ntwo\nmuster: cycle 1: n1 is lost\nthree\nfour\n")
    starts = {0: 0, 1: len("one\ntwo\nmuster: cycle 1: n1 is lost\n")}
    run.publishes("running", cycles=[{"cycle": cycle, "log_start": start} for cycle, start in starts.items()])
    assert invoke("logs", "--cycle", "0").out == "one\ntwo\nmuster: cycle 1: n1 is lost\n"
    assert invoke("logs", "--cycle", "1", "--driver").out == "three\nfour\n"
    assert invoke("logs", "--cycle", "0", "--tail", "2").out == "two\nmuster: cycle 1: n1 is lost\n"
    assert invoke("logs", "--cycle", "1", "--tail", "9").out == "three\nfour\n"
    assert invoke("logs", "--cycle", "0", "-f").out == "one\ntwo\nmuster: cycle 1: n1 is lost\n"
    done = invoke("logs", "--cycle", "2")
    assert done.code == 1 and "train has no output of cycle 2" in done.err
    done = invoke("logs", "--rank", "0")
    assert done.code == 1 and "train has no log of rank 0; only runs with --procs-per-node" in done.err
    write_json(run.job, {"procs_per_node": 2})
    assert invoke("logs", "--rank", "0").out == "three\nfour\n"
    assert invoke("logs", "--rank", "0", "--cycle", "0").out == "one\ntwo\nmuster: cycle 1: n1 is lost\n"


def test_the_last_lines_are_printed_and_then_what_is_added(
    start_run: StartRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run("train").says("one\ntwo\nthree\n")
    assert invoke("logs", "--tail", "2").out == "two\nthree\n"
    assert invoke("logs", "-n", "2").out == "two\nthree\n"
    assert invoke("logs", "--tail", "0").out == ""
    steps = iter([lambda: run.says("four\n"), lambda: run.publishes("succeeded").ends(0, "done")])
    monkeypatch.setattr(logs.time, "sleep", lambda seconds: next(steps)())
    assert invoke("logs", "--tail", "1", "-f").out == "three\nfour\n"


def test_a_log_of_several_files_is_printed_as_one(
    start_run: StartRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run("train")
    log = run.attempt(0).driver_log
    lines = [f"line {number} {'x' * 100}\n" for number in range(4000)]
    writing = SegmentedLog(Log(log).open(), log, MIN_SEGMENT_BYTES)
    writing.write("".join(lines[:1000]).encode())

    def go_on(number: int) -> None:
        writing.write("".join(lines[1000 * number : 1000 * (number + 1)]).encode())

    steps = iter([lambda: go_on(1), lambda: go_on(2), lambda: go_on(3), lambda: run.publishes("failed").ends(1, "x")])
    monkeypatch.setattr(logs.time, "sleep", lambda seconds: next(steps)())
    followed = invoke("logs", "-f").out  # it keeps up: nothing is lost, and no line is repeated
    assert len(find_segments(log)) == SEGMENT_COUNT - 1 and followed == "".join(lines)
    assert invoke("logs", "--tail", "1500").out == "".join(lines[-1500:])
    writing.write("".join(lines).encode())
    late = invoke("logs").out
    kept, rest = late.split("muster: ", 1)
    notice, _, end = rest.partition("\n")
    assert "bytes of output are not kept here, because of --log-limit" in notice
    assert "".join(lines).startswith(kept) and "".join(lines).endswith(end) and kept and end


def test_following_prints_what_is_added_until_the_end(
    start_run: StartRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run("train").says("one\n")
    steps = iter([lambda: run.says("two\n"), lambda: run.says("three\n").publishes("succeeded").ends(0, "done")])
    monkeypatch.setattr(logs.time, "sleep", lambda seconds: next(steps)())
    assert invoke("logs", "-f").out == "one\ntwo\nthree\n"


def test_following_continues_in_the_next_attempt(
    start_run: StartRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run("train", "slurm").says("first\n").ends(143, "the time limit")
    write_json(run.attempt(0).next_attempt, {"again": "requeue", "cause": "timeout", "note": ""})

    def begin_again(seconds: float) -> None:
        run.says("last of it\n").begins(1).says("second\n", 1).publishes("succeeded", 1).ends(0, "done", 1).script_ends(
            1
        )

    monkeypatch.setattr(logs.time, "sleep", begin_again)
    assert invoke("logs", "-f").out == "first\nlast of it\nsecond\n"


def test_following_a_run_whose_process_is_killed_ends(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train").says("one\n")
    run.submitted(kind="local", backend="local", pid=2**22 + 1, host=os.uname().nodename)  # beyond all process ids
    assert invoke("logs", "--follow").out == "one\n"
