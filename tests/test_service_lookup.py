"""`muster.service()`: which endpoint a process of the job gets, and errors that name what is missing."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import service_lookup

HERE, THERE = "http://10.0.0.1:1", "http://10.0.0.2:2"


@pytest.fixture(autouse=True)
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(service_lookup, "RECORD_POLL_S", 0.01)
    monkeypatch.setenv("MUSTER_SERVICES_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_CYCLE", "1")
    monkeypatch.delenv("MUSTER_SERVICE_CODE_JUDGE", raising=False)
    return tmp_path


def record(services: Path, *instances: tuple[str, str], local: bool = False, cycle: int = 1) -> None:
    entries = [{"rank": rank, "state": state, "url": url} for rank, (url, state) in enumerate(instances)]
    content: dict[str, Any] = {"cycle": cycle, "local": local, "instances": entries}
    (services / "code-judge.json").write_text(json.dumps(content))


def test_a_process_without_an_instance_on_its_node_gets_the_first_that_is_ready(services: Path) -> None:
    record(services, (HERE, "starting"), (THERE, "ready"))
    assert muster.service("code-judge") == THERE


def test_the_instance_on_this_node_comes_first(services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SERVICE_CODE_JUDGE", THERE)
    record(services, (HERE, "ready"), (THERE, "ready"))
    assert muster.service("code-judge") == THERE
    record(services, (HERE, "ready"), (THERE, "restarting"))  # the variable is that of the start
    assert muster.service("code-judge") == HERE


def test_an_endpoint_on_loopback_is_that_of_this_node_or_none(services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(services, ("http://127.0.0.1:7", "ready"), local=True)
    with pytest.raises(LookupError, match="was not ready within 0 s"):
        muster.service("code-judge", timeout=0)
    monkeypatch.setenv("MUSTER_SERVICE_CODE_JUDGE", "http://127.0.0.1:7")
    assert muster.service("code-judge") == "http://127.0.0.1:7"


def test_a_service_that_is_not_ready_yet_is_waited_for(services: Path) -> None:
    record(services, (THERE, "ready"), cycle=0)  # of the cycle before
    timer = threading.Timer(0.2, record, (services, (HERE, "ready")))
    timer.start()
    assert muster.service("code-judge", timeout=120) == HERE
    timer.join()


def test_a_service_that_the_job_does_not_have_is_named_with_those_that_it_has(services: Path) -> None:
    record(services, (HERE, "ready"))
    with pytest.raises(LookupError, match="the job has no service 'redis'; it has code-judge"):
        muster.service("redis", timeout=0)


@pytest.mark.parametrize("text", ["", "{", "null"])
def test_a_record_that_is_being_written_is_not_ready(services: Path, text: str) -> None:
    (services / "code-judge.json").write_text(text)
    with pytest.raises(LookupError, match="was not ready"):
        muster.service("code-judge", timeout=0)


def test_outside_a_run_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_SERVICES_DIR")
    with pytest.raises(LookupError, match="does not belong to a run with services"):
        muster.service("code-judge")
