"""A node's mailbox: what reaches the leader, in which form, and what is left of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.leader.leader_doubles import wait_until

from muster.agent import request_mailbox
from muster.agent.control.codec import Message
from muster.agent.control.messages import ControlRequest
from muster.agent.request_mailbox import RequestMailbox
from muster.control_requests import create_directory
from muster.lifecycle.control import ControlKind


class Mailbox:
    """A mailbox in a directory, and what it has sent."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.sent = directory, list[Message]()
        self.box = RequestMailbox(str(directory), 2, self.sent.append)

    def write(self, name: str, **fields: Any) -> Path:
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps({"reason": "why", "when": None, "rank": None, **fields}))
        return path


@pytest.fixture
async def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mailbox]:
    monkeypatch.setattr(request_mailbox, "REQUEST_POLL_S", 0.01)
    mailbox = Mailbox(tmp_path / "parent" / "0.2.0.ctl")
    create_directory(str(mailbox.directory))
    yield mailbox
    await mailbox.box.close()


async def test_a_request_is_sent_once_and_removed_when_it_is_recorded(mailbox: Mailbox) -> None:
    path = mailbox.write("1-ab", kind="exclude_node", when="next_restart", rank="3")
    await wait_until(lambda: mailbox.sent)
    mailbox.write("2-cd", kind="no_restart")
    await wait_until(lambda: len(mailbox.sent) == 2)
    assert mailbox.sent == [
        ControlRequest("1-ab", ControlKind.EXCLUDE_NODE, "why", False, 3, 2),
        ControlRequest("2-cd", ControlKind.NO_RESTART, "why", True, None, 2),
    ]
    assert path.exists()
    mailbox.box.on_recorded(["1-ab", "exit-2"])
    await wait_until(lambda: not path.exists())


async def test_a_reason_is_one_line_of_limited_length(mailbox: Mailbox) -> None:
    mailbox.write("1-ab", kind="request_restart", reason="a\nb " + "x" * 10_000)
    await wait_until(lambda: mailbox.sent)
    (request,) = mailbox.sent
    assert isinstance(request, ControlRequest)
    assert request.reason.startswith("a b xxx") and len(request.reason) == 500


async def test_files_that_are_no_requests_are_reported_and_ignored(
    mailbox: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    (mailbox.directory / "1-aa.json").write_text("no JSON")
    mailbox.write("2-bb", kind="reboot")
    (mailbox.directory / "3-cc.json").write_text("[]")
    (mailbox.directory / "4-dd.json.tmp").write_text("{")
    mailbox.write("5-ee", kind="no_restart")
    await wait_until(lambda: mailbox.sent)
    assert [message.id for message in mailbox.sent if isinstance(message, ControlRequest)] == ["5-ee"]
    assert sum("is no control request" in line for line in caplog.messages) == 3


async def test_the_last_requests_are_sent_before_the_directory_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_mailbox, "REQUEST_POLL_S", 3600.0)
    mailbox = Mailbox(tmp_path / "parent" / "ctl")
    create_directory(str(mailbox.directory))
    mailbox.write("1-ab", kind="exclude_node")
    await mailbox.box.close()
    assert len(mailbox.sent) == 1 and not (tmp_path / "parent").exists()


async def test_a_mailbox_without_requests_has_no_directory(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "parent" / "ctl")
    await mailbox.box.close()
    assert mailbox.sent == [] and not (tmp_path / "parent").exists()
