"""Log messages in a node's log."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.node_log import AGENT_LIBRARIES, ThreadedStderr, limit_node_log, log_to_stderr
from muster.process.log_reader import LogReader
from muster.process.log_segments import MIN_SEGMENT_BYTES, SEGMENT_COUNT, find_segments, segment_path


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


class ThreadNoting(logging.Formatter):
    """Notes the threads that format a traceback, which looks for source files."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def formatException(self, ei: object) -> str:
        self.threads.append(threading.get_ident())
        return "traceback"


def test_a_traceback_is_formatted_by_the_thread_that_writes(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("n1")
    (handler,) = logging.getLogger("muster").handlers
    formatter = ThreadNoting()
    handler.setFormatter(formatter)
    logging.getLogger("muster.agent.leader").error("failed", exc_info=ValueError("defect"))
    flush()
    assert capsys.readouterr().err == "failed\ntraceback\n"
    assert formatter.threads and threading.get_ident() not in formatter.threads


def test_messages_of_asyncio_are_written_by_the_same_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """Python writes a message without a handler to stderr itself, on the event loop."""
    library = logging.getLogger("asyncio")
    before, library.handlers = library.handlers, []
    try:
        log_to_stderr("n1", AGENT_LIBRARIES)
        library.error("Task exception was never retrieved")
        flush()
        assert library.handlers == logging.getLogger("muster").handlers
        assert capsys.readouterr().err.endswith(" n1 ERROR asyncio: Task exception was never retrieved\n")
    finally:
        library.handlers = before


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


AGENT = """
import logging, os, sys
from muster.agent.node_log import ThreadedStderr, limit_node_log, log_to_stderr
log_to_stderr("n1")
limit_node_log(sys.argv[1], int(sys.argv[2]))
for number in range(20_000):
    logging.getLogger("muster").info("message %d %s", number, "x" * 40)
logging.getLogger("muster").handlers[0].flush()
os.write(1, b"last words\\n")
"""


@pytest.mark.parametrize("limit", [SEGMENT_COUNT * MIN_SEGMENT_BYTES, 0])
def test_a_node_s_log_keeps_its_beginning_and_end_within_the_limit(limit: int, tmp_path: Path) -> None:
    log = tmp_path / "node-0003.log"
    log.write_text("output of --setup\n")
    with open(log, "a") as file:
        subprocess.run([sys.executable, "-c", AGENT, str(log), str(limit)], stdout=file, stderr=file, check=True)
    starts = find_segments(str(log))
    text = b"".join(iter(LogReader(str(log)).read_with_notice, b"")).decode()
    assert text.startswith("output of --setup\n") and "message 0 x" in text and text.endswith("last words\n")
    if limit:
        assert len(starts) == SEGMENT_COUNT and "bytes of output are not kept here" in text
        kept = sum(Path(segment_path(str(log), start)).stat().st_size for start in starts)
        assert kept < limit + SEGMENT_COUNT * 200
    else:
        assert starts == [0] and text.count("message") == 20_000


def test_a_process_whose_stderr_is_not_the_node_s_log_keeps_it(tmp_path: Path) -> None:
    log_to_stderr("n1")
    (tmp_path / "log").touch()
    limit_node_log(str(tmp_path / "log"), 1)
    limit_node_log(str(tmp_path / "missing"), 1)
    (handler,) = logging.getLogger("muster").handlers
    assert isinstance(handler, ThreadedStderr) and handler.limit is None
