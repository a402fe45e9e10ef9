"""The run's error: published at once, explained by its log later."""

from __future__ import annotations

from pathlib import Path

from tests.agent.leader.leader_doubles import LeaderParts


async def test_an_error_is_in_the_status_at_once_and_its_event_has_the_last_lines_of_the_log(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    log = tmp_path / "log"
    log.write_text("out of memory\n")
    error = parts.context.error
    error.note(parts.machine.nodes[1], "driver", "exited with 1", str(log))
    published = parts.publisher.snapshot()["error"]
    assert (published["host"], published["reason"], published["log_tail"]) == ("n1", "exited with 1", [])
    assert parts.events("failure") == []
    parts.machine.cycle = 1  # begins before the log is read
    await error.settle()
    assert parts.publisher.snapshot()["error"]["log_tail"] == ["out of memory"]
    (event,) = parts.events("failure")
    assert (event["log_tail"], event["cycle"]) == (["out of memory"], 0)


async def test_the_first_error_is_kept(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    error = parts.context.error
    error.note(parts.machine.nodes[1], "driver", "the first", None, ["its words"])
    error.note(parts.machine.nodes[2], "driver", "the second", None)
    assert [(event["reason"], event["log_tail"]) for event in parts.events("failure")] == [("the first", ["its words"])]


async def test_an_error_that_the_run_survives_leaves_the_status_but_has_an_event(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    error = parts.context.error
    error.note(parts.machine.nodes[1], "running", "lost", str(tmp_path / "none"))
    error.drop()
    error.note(parts.machine.nodes[2], "running", "lost, too", str(tmp_path / "none"))
    await error.settle()
    assert parts.publisher.snapshot()["error"]["reason"] == "lost, too"
    assert [event["reason"] for event in parts.events("failure")] == ["lost", "lost, too"]
