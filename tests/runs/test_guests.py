"""Guest sessions from outside: the request, the output, the exit code."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.runs.conftest import FakeRun

from muster.rundir import read_record, write_json
from muster.runs import guests
from muster.runs.guests import Guest, GuestLost


@pytest.fixture
def guest(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> Guest:
    monkeypatch.setattr(guests, "FOLLOW_POLL_S", 0.01)
    run.submitted(job_id="17").begins().publishes("running")
    return Guest(run, run.attempt(0))


def write_log(guest: Guest, data: bytes) -> None:
    with open(guest.log, "ab") as file:
        file.write(data)


def test_only_the_owner_can_read_a_request(run: FakeRun, guest: Guest) -> None:
    guest.request(["python", "eval.py"], {"HF_TOKEN": "secret"}, "/work")
    guest.request(["python", "eval.py"], {"HF_TOKEN": "secret"}, "/work")  # its directory exists now
    path = run.attempt(0).guest_request(guest.id)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    request = read_record(path)
    assert request.pop("time") > 0
    assert request == {"command": ["python", "eval.py"], "env": {"HF_TOKEN": "secret"}, "workdir": "/work"}


def test_two_guests_of_one_second_have_different_names(run: FakeRun) -> None:
    assert len({Guest(run, run.attempt(0)).id for _ in range(5)}) > 1


def test_a_stop_is_a_file_that_the_leader_polls(run: FakeRun, guest: Guest) -> None:
    guest.request(["true"], {}, "/")
    guest.stop()
    assert read_record(run.attempt(0).guest_stop(guest.id))["time"] > 0


def test_the_output_is_passed_on_until_the_guest_ends_and_its_code_is_returned(run: FakeRun, guest: Guest) -> None:
    guest.request(["true"], {}, "/")
    write_log(guest, b"one\n")
    received = b""

    def write(data: bytes) -> None:
        """Each piece of output makes the leader do the next thing."""
        nonlocal received
        received += data
        if received == b"one\n":
            write_log(guest, b"two\n")
        elif received == b"one\ntwo\n":
            write_log(guest, b"last\n")
            write_json(run.attempt(0).guest_outcome(guest.id), {"exit_code": 7})

    assert guest.follow(write) == 7
    assert received == b"one\ntwo\nlast\n"


def test_a_guest_that_ended_before_the_run_has_its_code_after_it_too(run: FakeRun, guest: Guest) -> None:
    guest.request(["true"], {}, "/")
    write_json(run.attempt(0).guest_outcome(guest.id), {"exit_code": 0})
    run.ends(0, "the driver exited with 0")
    assert guest.follow(lambda data: None) == 0


def test_a_guest_without_an_outcome_in_an_ended_run_is_lost_after_its_output(run: FakeRun, guest: Guest) -> None:
    guest.request(["true"], {}, "/")
    write_log(guest, b"half")
    run.ends(125, "the leader is gone")
    received: list[bytes] = []
    with pytest.raises(GuestLost, match=f"{run.run_id} ended before guest {guest.id} had"):
        guest.follow(received.append)
    assert received == [b"half"]


def test_a_guest_of_a_run_whose_job_script_was_killed_is_lost(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.submitted(kind="local", pid=4_194_304, host=os.uname().nodename).begins()  # no process can have this pid
    guest = Guest(run, run.attempt(0))
    assert not Path(guest.log).exists()
    with pytest.raises(GuestLost):
        guest.follow(lambda data: None)
