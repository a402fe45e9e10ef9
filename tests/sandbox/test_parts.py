"""The pure parts: output, settings, translation, the seccomp filter, the shell of sessions."""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
from typing import Any

import pytest

from muster.sandbox.api import nemo_skills, sandbox_fusion
from muster.sandbox.api.nemo_skills import BadRequest, Bounds
from muster.sandbox.engine import metrics
from muster.sandbox.engine.isolation import FLOOR, ROOT, USER, candidates, first_user
from muster.sandbox.engine.jail_program import bundle
from muster.sandbox.engine.languages import Languages
from muster.sandbox.jail import repl, seccomp
from muster.sandbox.models import ProgramResult, ResourceUsage
from muster.sandbox.output import Captured, Stream, strip_ipython_formatting
from muster.sandbox.settings import SandboxSettings, SettingsError, split_address

BOUNDS = Bounds(3600, 1 << 20, 4096)
HERE = Languages(os.environ["PATH"])

# -- output ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "more", "limit", "text"),
    [
        (b"abc", False, 3, "abc"),
        (b"abcd", False, 3, "abc<output cut>"),
        ("äöü".encode(), False, 2, "äö<output cut>"),
        (b"abc", True, 10, "abc<output cut>"),
        ("ab€".encode()[:-1], True, 10, "ab<output cut>"),  # in the middle of a character
        (b"", False, 5, ""),
    ],
)
def test_output_is_cut_at_characters(data: bytes, more: bool, limit: int, text: str) -> None:
    assert Captured(data, more).text(limit) == text


def test_a_stream_keeps_what_was_asked_for_and_forgets_the_rest() -> None:
    stream = Stream()
    stream.begin(10)
    for _ in range(40):
        os.write(stream.child_fd, b"x" * 10_000)
        stream.read()
    captured = stream.finish()
    assert captured.more and len(captured.data) <= 4 * 10 + (1 << 16)
    assert captured.text(10) == "x" * 10 + "<output cut>"
    stream.begin(10)  # a session's next cell begins anew
    os.write(stream.child_fd, b"y")
    assert stream.finish() == Captured(b"y", False)
    stream.close_child_end()
    stream.close()


@pytest.mark.parametrize(
    ("raw", "tidy"),
    [
        ("\n\nOut[3]: 5\n\n", "5\n"),
        ("\x1b[31mred\x1b[0m\n", "red\n"),
        ("Traceback\n  File <ipython-input-1-ab>:1\n    1 / 0\nZ\n", "Traceback\n    1 / 0\nZ\n"),
        ("  Cell In[1], line 1\n    x = (\n", "    x = (\n"),
        ("", ""),
        ("  \n", ""),
    ],
)
def test_ipython_s_output_is_made_plain(raw: str, tidy: str) -> None:
    assert strip_ipython_formatting(raw) == tidy


# -- settings -------------------------------------------------------------------------------------------------------


def test_settings_refuse_all_that_is_wrong_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        SandboxSettings(
            workers_min=0, memory_mb=1, isolation="x", python="/no/python", port=70000, read_only=("/no/path",)
        )
    problems = "\n".join(caught.value.problems)
    for word in ("workers_min", "memory_mb", "isolation", "/no/python", "port", "/no/path"):
        assert word in problems


def test_settings_come_from_json() -> None:
    settings = SandboxSettings.from_json({"preload": ["json"], "env": {"A": "b"}, "workers_min": 1, "workers_max": 1})
    assert (settings.preload, settings.env) == (("json",), (("A", "b"),))
    with pytest.raises(SettingsError, match="unknown setting 'ports'"):
        SandboxSettings.from_json({"ports": 1})


@pytest.mark.parametrize("text", ["nowhere", "host:", "host:99999", ":x"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not ADDRESS:PORT"):
        split_address(text)


def test_auto_never_goes_below_the_floor() -> None:
    assert candidates("auto", True) == [ROOT, USER, FLOOR]
    assert candidates("auto", False) == [USER, FLOOR]
    assert candidates("full", False) == [USER]


def test_users_for_workers_are_found_in_small_containers_too() -> None:
    assert first_user(1_900_000_000, [(0, 1), (1, 65535)]) is None
    assert first_user(1_900_000_000, [(0, 1), (1, 1_000_000)]) == 800_001
    assert first_user(500_000, [(0, 4_294_967_295)]) == 500_000


# -- translation ----------------------------------------------------------------------------------------------------


def ended(**fields: Any) -> ProgramResult:
    values = {"exit_code": 0, "signal": None, "reason": None, "stdout": Captured(b"o"), "stderr": Captured(b"e")}
    return ProgramResult(**{**values, "usage": ResourceUsage(1.0, 0.5, 1000), **fields})  # type: ignore[arg-type]


def test_a_limit_is_an_error_with_its_reason_and_what_was_printed() -> None:
    request = nemo_skills.parse({"generated_code": "", "timeout": 5, "language": "python"}, {}, HERE, BOUNDS)
    answer = nemo_skills.answer(request, ended(exit_code=None, signal=9, reason="memory"))
    assert answer == {
        "process_status": "error",
        "stdout": "o",
        "reason": "memory",
        "stderr": "eExecution ended: it exceeded its memory limit\n",
    }


def test_numbers_must_be_numbers() -> None:
    for timeout in (True, "5", -1, float("nan"), float("inf"), None):
        with pytest.raises(BadRequest, match="timeout must be a number greater than 0"):
            nemo_skills.parse({"generated_code": "", "timeout": timeout, "language": "python"}, {}, HERE, BOUNDS)


def test_a_worker_that_was_lost_is_the_sandbox_s_error_in_sandboxfusion_s_words() -> None:
    answer = sandbox_fusion.answer([ended(exit_code=None, signal=9, reason="lost")], False, 1000, {})
    assert (answer["status"], answer["message"]) == ("SandboxError", "its worker was lost")
    assert answer["run_result"]["status"] == "Error"


# -- the filter -----------------------------------------------------------------------------------------------------


def decide(program: bytes, number: int, arguments: tuple[int, ...] = (), machine: str = "x86_64") -> int:
    """What the kernel would do: the filter run on one call."""
    data = struct.pack("=IIQ6Q", number, seccomp.ARCHITECTURES.get(machine, 0x40000003), 0, *(*arguments, *[0] * 6)[:6])
    at, value = 0, 0
    while True:
        code, when_true, when_false, operand = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += when_true if holds else when_false


def test_the_filter_refuses_by_number_argument_and_machine() -> None:
    program = seccomp.filter_for("x86_64", [seccomp.AF_UNIX], memory_files=False, others=[1])
    refused, allowed = seccomp.ERRNO | errno.EPERM, seccomp.ALLOW
    assert decide(program, 0) == allowed  # read
    assert [decide(program, number) for number in (101, 165, 272, 321, 425, 319)] == [refused] * 6
    assert decide(program, 41, (1, 1)) == allowed  # socket(AF_UNIX)
    assert decide(program, 41, (2, 1)) == seccomp.ERRNO | errno.EACCES
    assert decide(program, 56, (0x01200011,)) == allowed  # fork
    assert decide(program, 56, (0x10000011,)) == refused  # with a new user namespace
    assert decide(program, 435) == seccomp.ERRNO | errno.ENOSYS
    assert decide(program, 16, (0, 0x5412)) == refused  # TIOCSTI
    assert decide(program, 16, (0, 0x5401)) == allowed
    assert decide(program, 0x40000000 + 41) == seccomp.KILL_PROCESS  # x32
    assert decide(program, 41, machine="i386") == seccomp.KILL_PROCESS


def test_with_the_network_on_every_socket_may_be_made() -> None:
    program = seccomp.filter_for("aarch64", None, memory_files=True, others=None)
    assert decide(program, 198, (2, 1), "aarch64") == seccomp.ALLOW
    assert decide(program, 279, (), "aarch64") == seccomp.ALLOW
    assert decide(program, 117, (), "aarch64") == seccomp.ERRNO | errno.EPERM


PRLIMIT, AFFINITY, SETPRIORITY, IOPRIO = 302, 203, 141, 251  # on x86_64
PROCESS, GROUP, USER_S = 0, 1, 2  # of setpriority; ioprio_set counts from 1


def test_the_filter_keeps_limits_and_scheduling_of_the_worker_from_its_programs() -> None:
    program = seccomp.filter_for("x86_64", [], memory_files=False, others=[1])
    refused, allowed = seccomp.ERRNO | errno.EPERM, seccomp.ALLOW
    for number in (PRLIMIT, AFFINITY, 142, 144, 314):
        assert [decide(program, number, (pid,)) for pid in (0, 1, 2)] == [allowed, refused, allowed]
    for number, first in ((SETPRIORITY, 0), (IOPRIO, 1)):
        for kind, whose, then in (
            (PROCESS, 0, allowed),
            (PROCESS, 1, refused),
            (PROCESS, 2, allowed),
            (GROUP, 0, allowed),
            (GROUP, 7, refused),
            (USER_S, 0, refused),
            (USER_S, 1000, refused),
        ):
            assert decide(program, number, (kind + first, whose)) == then, (number, kind, whose)


def test_where_all_workers_are_one_user_a_program_can_change_only_itself() -> None:
    program = seccomp.filter_for("x86_64", [], memory_files=False, others=None)
    refused, allowed = seccomp.ERRNO | errno.EPERM, seccomp.ALLOW
    assert [decide(program, PRLIMIT, (pid,)) for pid in (0, 1, 77)] == [allowed, refused, refused]
    assert [decide(program, SETPRIORITY, (PROCESS, pid)) for pid in (0, 77)] == [allowed, refused]


# -- inside ---------------------------------------------------------------------------------------------------------


def test_commands_in_cells_are_found_only_where_they_are_no_python() -> None:
    assert repl.with_commands("!ls -l") == "_run_command('ls -l')"
    assert repl.with_commands("for i in 'ab':\n    !echo x") == "for i in 'ab':\n    _run_command('echo x')"
    text = "x = '''\n!no\n'''\nprint(5 % 3)"
    assert repl.with_commands(text) == text
    with pytest.raises(SyntaxError, match="need IPython"):
        repl.with_commands("%timeit 1")


def test_what_is_sent_to_the_zygote_holds_no_secret_of_the_settings() -> None:
    sent = json.loads(bundle({"preload": [], "read_only": []}))
    assert sent["modules"]["muster"] is None and "def main" in sent["modules"]["muster.sandbox.jail.zygote"]
    assert sys.version_info >= (3, 9)


def test_the_rate_is_of_the_last_whole_seconds_and_counts_are_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    counted = metrics.Metrics()
    for second in range(60):
        now = 1000.0 + second
        for status in ("ok", "completed", "timeout"):
            counted.ended("python", status, 0.0, 0.1)
    assert counted.summary() == {"executed": 180, "failed": 60, "rate": 3.0}
    assert len(counted._recent) <= 2 * metrics.RATE_WINDOW_S
    now += metrics.RATE_WINDOW_S + 1.0
    assert counted.summary()["rate"] == 0.0
