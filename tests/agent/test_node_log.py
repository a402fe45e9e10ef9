"""Log messages in a node's log."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from muster.agent.node_log import log_to_stderr


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """Muster's loggers as in a process that has just started."""
    logger = logging.getLogger("muster")
    before, logger.handlers = (logger.handlers, logger.level), []
    yield
    logger.handlers, logger.level = before


def test_a_message_shows_time_node_level_and_module_and_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("n1")
    log_to_stderr("n1")
    logging.getLogger("muster.agent.node").warning("port %d is taken", 80)
    logging.getLogger("muster.agent.node").debug("not shown")
    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} n1 WARNING muster\.agent\.node: port 80 is taken\n"
    assert re.fullmatch(line, capsys.readouterr().err)


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_message_that_cannot_be_written_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as the agent sets it
    monkeypatch.setattr(sys, "stderr", FullDisk())
    log_to_stderr("n1")
    logging.getLogger("muster.agent.node").error("the disk is full")
