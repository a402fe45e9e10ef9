"""Log messages in a node's log."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
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
    flush()
    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} n1 WARNING muster\.agent\.node: port 80 is taken\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def flush() -> None:
    for handler in logging.getLogger("muster").handlers:
        handler.flush()


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_message_that_cannot_be_written_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as the agent sets it
    monkeypatch.setattr(sys, "stderr", FullDisk())
    log_to_stderr("n1")
    logging.getLogger("muster.agent.node").error("the disk is full")
    flush()


def test_a_log_that_cannot_be_written_does_not_stop_the_process_that_logs() -> None:
    """The pipe is full, as a file of a filesystem that hangs. The process ends although a message is not written."""
    program = """
import logging, sys, time
from muster.agent import node_log
node_log.FLUSH_TIMEOUT_S = 0.2
node_log.log_to_stderr("n1")
for _ in range(100):
    logging.getLogger("muster.agent.node").warning("x" * 65536)
print("goes on", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read() == b"goes on\n"
    assert process.wait(60) == 0
    process.stdout.close()
    process.stderr.close()


def test_the_thread_that_writes_is_that_of_the_process_that_logs(capfd: pytest.CaptureFixture[str]) -> None:
    """The agent is forked from its guardian after the log was configured."""
    log_to_stderr("n1")
    logging.getLogger("muster.agent.node").warning("parent")
    flush()
    child = os.fork()
    if child == 0:
        logging.getLogger("muster.agent.node").warning("child")
        flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert [line.split()[-1] for line in capfd.readouterr().err.splitlines()] == ["parent", "child"]
