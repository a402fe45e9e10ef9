"""A scope starts processes and reports their ends; starts do not disturb each other."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from muster.process import Exit, Scope, SpawnError

if TYPE_CHECKING:
    from tests.process.conftest import Words


async def exit_of(script: str) -> Exit:
    async with Scope("test") as scope:
        return await (await scope.spawn(["sh", "-c", script])).wait()


@pytest.mark.parametrize(
    ("script", "exit", "shell_code", "words"),
    [
        ("exit 0", Exit(code=0), 0, "exited with 0"),
        ("exit 7", Exit(code=7), 7, "exited with 7"),
        ("kill -TERM $$", Exit(signal=15), 143, "was ended by SIGTERM"),
        ("kill -KILL $$", Exit(signal=9), 137, "was ended by SIGKILL"),
    ],
)
async def test_an_exit_code_or_a_signal_is_reported_as_data(
    script: str, exit: Exit, shell_code: int, words: str
) -> None:
    assert await exit_of(script) == exit
    assert (exit.shell_code, str(exit)) == (shell_code, words)


def test_an_unobserved_end_counts_as_an_infrastructure_failure() -> None:
    assert (Exit().shell_code, str(Exit())) == (125, "was lost")
    assert str(Exit(signal=40)) == "was ended by signal 40"  # a real-time signal has no name


async def test_an_exit_code_is_never_mixed_up_with_those_of_orphans_that_die_in_the_same_moment() -> None:
    """Each driver leaves eight orphans, with other codes, at the instant of its end."""
    driver = "for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 3' &) ; done; exit 7"
    async with Scope("test") as scope:
        drivers = [await scope.spawn(["sh", "-c", driver]) for _ in range(25)]
        assert [(await each.wait()).code for each in drivers] == [7] * 25


async def test_the_exit_is_none_while_the_process_runs_and_known_afterwards() -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sleep", "1000"])
        assert process.exit is None
        process.signal(signal.SIGKILL)
        assert await process.wait() == process.exit == Exit(signal=9)
        process.signal(signal.SIGKILL)  # no process left: no error


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({"argv": ["/no/such/program"]}, "/no/such/program"),
        ({"argv": ["no-such-program-on-path"]}, "no-such-program-on-path"),
        ({"argv": ["true"], "cwd": "/no/such/directory"}, "/no/such/directory"),
        ({"argv": ["/etc/passwd"]}, "Permission denied"),
        ({"argv": ["true", "a\0b"]}, "null byte"),
    ],
)
async def test_what_cannot_be_started_is_refused_by_name_and_the_scope_stays_usable(
    start: dict[str, Any], said: str
) -> None:
    async with Scope("test") as scope:
        with pytest.raises(SpawnError, match=said):
            await scope.spawn(**start)
        assert (await (await scope.spawn(["true"])).wait()).code == 0


async def test_the_descriptors_given_become_stdin_stdout_and_stderr(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("hello\n")
    with open(tmp_path / "in") as stdin, open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        async with Scope("test") as scope:
            process = await scope.spawn(
                ["sh", "-c", "read x; echo out $x; echo err $x >&2"],
                stdin=stdin.fileno(),
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
            assert (await process.wait()).code == 0
    assert (tmp_path / "out").read_text() == "out hello\n"
    assert (tmp_path / "err").read_text() == "err hello\n"


async def test_descriptors_left_out_are_dev_null() -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sleep", "1000"])
        assert [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null"] * 3


async def test_no_other_descriptor_of_the_owner_reaches_the_child(tmp_path: Path, words: Words) -> None:
    silence, mouth = os.pipe()
    with open(tmp_path / "secret", "w") as file, socket.socket() as connection, open(silence), open(mouth, "w"):
        os.set_inheritable(file.fileno(), True)
        os.set_inheritable(connection.fileno(), True)
        async with Scope("test") as scope:
            process = await scope.spawn(["sh", "-c", "echo ready; read x"], stdin=silence, stdout=words.fd)
            assert await words.line() == "ready"  # its libraries are loaded: whatever is open now was given to it
            assert sorted(os.listdir(f"/proc/{process.pid}/fd")) == ["0", "1", "2"]


async def test_starting_processes_leaks_no_descriptor_of_the_owner() -> None:
    async with Scope("test") as scope:
        before = os.listdir("/proc/self/fd")
        for argv in (["true"], ["/no/such/program"], ["true"]):
            try:
                await (await scope.spawn(argv)).wait()
            except SpawnError:
                continue
        assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_the_child_has_a_session_of_its_own_and_the_directory_and_environment_given(
    tmp_path: Path, words: Words
) -> None:
    async with Scope("test") as scope:
        script = 'read _ _ _ _ _ session _ </proc/$$/stat; echo "$session $PWD $COLOUR"'
        process = await scope.spawn(
            ["sh", "-c", script], cwd=str(tmp_path), env={**os.environ, "COLOUR": "grün\n"}, stdout=words.fd
        )
        await process.wait()
        assert await words.rest() == f"{process.pid} {tmp_path} grün\n\n"


async def test_many_starts_at_once_with_environments_larger_than_a_socket_buffer_do_not_mix() -> None:
    large = {f"LARGE_{i}": "x" * 100_000 for i in range(6)}
    async with Scope("test") as scope:
        children = await asyncio.gather(
            *(
                scope.spawn(
                    [sys.executable, "-S", "-c", f"import os; raise SystemExit(len(os.environ['N']) + {n})"],
                    env={**os.environ, **large, "N": "n" * n},
                )
                for n in range(8)
            )
        )
        assert [(await child.wait()).code for child in children] == [2 * n for n in range(8)]


async def test_a_start_that_is_given_up_leaves_the_scope_working_and_nothing_behind(
    live: Callable[..., list[int]],
) -> None:
    async with Scope("test") as scope:
        for _ in range(3):
            start = asyncio.create_task(scope.spawn(["sleep", "1000"]))
            await asyncio.sleep(0)  # the request is on its way
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        assert (await (await scope.spawn(["true"])).wait()).code == 0
    assert live(scope.supervisor_pid) == []


async def test_a_cancelled_wait_does_not_disturb_other_waiters() -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sleep", "1000"])
        impatient = asyncio.create_task(process.wait())
        await asyncio.sleep(0)
        impatient.cancel()
        process.signal(signal.SIGTERM)
        assert await process.wait() == Exit(signal=15)


# An owner with many open descriptors: later ones have numbers that `select` does not support (1,024 and above).
OWNER_OF_MANY = """
import asyncio, os, resource
from muster.process import Scope, lease

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1200)]

async def main():
    lease.hold().renew(1000)
    for cycle in range(2):
        scope = await Scope("test").open()
        processes = [await scope.spawn(["sh", "-c", f"exit {code}"]) for code in (0, 3)]
        running = await scope.spawn(["sleep", "1000"])
        print([(await process.wait()).code for process in processes], flush=True)
        await scope.close(0)
        print(running.exit, flush=True)

asyncio.run(main())
"""


def test_an_owner_of_more_than_a_thousand_descriptors_opens_uses_and_closes_scopes(
    python: Callable[[str], list[str]],
) -> None:
    done = subprocess.run(python(OWNER_OF_MANY), capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[0, 3]", "was ended by SIGKILL"] * 2, done.stderr
