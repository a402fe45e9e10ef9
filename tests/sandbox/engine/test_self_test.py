"""The check before the first request: what a program reports decides whether the sandbox may serve."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.sandbox.results import ended

from muster.sandbox.engine import self_test
from muster.sandbox.engine.isolation import FLOOR, PROCESS, Level, Profile
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.models import Program, ProgramResult
from muster.sandbox.output import Captured


class FakeEngine:
    """Answers the test program with a result."""

    def __init__(self, directory: Path, result: ProgramResult, profile: Profile = FLOOR) -> None:
        self.directory, self.result = str(directory), result
        self.pool = SimpleNamespace(level=Level(profile, (), ()))
        self.settings = SimpleNamespace(network=False, python="/opt/python")

    async def run(self, work: Program, kind: int) -> list[ProgramResult]:
        (secret,) = Path(self.directory).iterdir()
        assert secret.read_text() == "secret" and secret.stat().st_mode & 0o777 == 0o600
        assert str(secret) in work.steps[0].job["code"]
        return [self.result]


async def verify(engine: Any) -> None:
    try:
        await self_test.verify(engine)
    finally:
        assert os.listdir(engine.directory) == []


def reported(could: list[str]) -> ProgramResult:
    return ended(stdout=Captured(json.dumps(could).encode()))


async def test_a_program_that_could_do_nothing_is_isolated(tmp_path: Path) -> None:
    await verify(FakeEngine(tmp_path, reported([])))


async def test_a_program_that_could_do_more_is_an_error_except_where_nothing_was_promised(tmp_path: Path) -> None:
    could = reported(["be root", "read /x"])
    with pytest.raises(SandboxError, match="does not isolate: a program could be root, read /x"):
        await verify(FakeEngine(tmp_path, could))
    await verify(FakeEngine(tmp_path, could, PROCESS))


async def test_root_in_a_container_without_other_users_gets_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_users, told in ((False, True), (True, False)):
        monkeypatch.setattr(self_test, "has_users", lambda found=has_users: found)
        with pytest.raises(SandboxError) as raised:
            await verify(FakeEngine(tmp_path, reported(["be root"])))
        assert ("run the job as an ordinary user" in str(raised.value)) == told


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ended(exit_code=1, stderr=Captured(b"Trace\nOSError: no disk\n")), "failed in the sandbox: OSError: no disk$"),
        (ended(exit_code=None, signal=9, reason="memory", stderr=Captured()), "it exceeded its memory limit$"),
        (ended(exit_code=1, stderr=Captured(b"No module named 'x'\n")), r"'x' \(can every user read /opt/python and"),
    ],
    ids=["error", "limit", "unreadable library"],
)
async def test_a_program_that_fails_is_an_error_with_its_last_line(
    tmp_path: Path, result: ProgramResult, message: str
) -> None:
    with pytest.raises(SandboxError, match=message):
        await verify(FakeEngine(tmp_path, result))


def test_the_test_program_finds_what_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run here, without a sandbox, it must report what it could do: else it proves nothing."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    values = {"network": False, "foreign": str(tmp_path), "secret": str(secret), "pid": os.getpid()}
    host_port = self_test.HostPort()
    code = self_test.TEST_PROGRAM.format(**values, port=host_port.number, is_root=os.getuid() == 0)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        with host_port:
            exec(compile(code, "<test>", "exec"), {})
            assert host_port.has_received() and not host_port.has_received()
    finally:
        os.chdir(before)
    could = json.loads(capsys.readouterr().out)
    assert {"connect to the host", f"write to {tmp_path}", f"read {secret}"} <= set(could)
    assert ("be root" in could) == (os.getuid() == 0) and "trace the service" in could
