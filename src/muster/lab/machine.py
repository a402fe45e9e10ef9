"""Start the lab's machines (controller and nodes), each in separate namespaces, and run commands in them."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.lab import boot, cgroup
from muster.lab.errors import LabError
from muster.lab.plan import LabPlan
from muster.lab.process import ProcessId, all_pids, namespace_id
from muster.lab.requirements import search_path
from muster.lab.users import LabUser

BOOT_DEADLINE_S = 30.0

Connect = Callable[[dict[str, int]], None]

#: Runs "$@" in directory $1, or in $2 where the machine has no such directory or the user cannot enter it.
_IN_DIRECTORY = 'cd "$1" 2>/dev/null || cd "$2"; shift 2; exec "$@"'


@dataclasses.dataclass(frozen=True)
class Login:
    """The user that a command runs as, and the directory in which it starts if it cannot start where it should."""

    user: LabUser
    home: Path


@dataclasses.dataclass
class _Booting:
    name: str
    starter: subprocess.Popen[str]


def start(
    plan: LabPlan,
    names: Sequence[str],
    visible: Sequence[Path],
    connect: Connect,
) -> dict[str, ProcessId]:
    """Start machines concurrently, and call `connect` for their network when all namespaces exist.

    Return the init process of each; killing it kills the machine.
    """
    booting = [_launch(plan, name, visible) for name in names]
    try:
        deadline = time.monotonic() + BOOT_DEADLINE_S
        machines = {one.name: _read_init_pid(plan, one, deadline) for one in booting}
        connect({name: process.pid for name, process in machines.items()})
        for one in booting:
            assert one.starter.stdin is not None
            one.starter.stdin.write("go\n")
            one.starter.stdin.flush()
    except BrokenPipeError:
        raise LabError(f"a machine ended while it was starting; logs are in {plan.log_dir}") from None
    finally:
        for one in booting:
            for pipe in (one.starter.stdin, one.starter.stdout):
                assert pipe is not None
                pipe.close()
            one.starter.wait()
    return machines


def _launch(plan: LabPlan, name: str, visible: Sequence[Path]) -> _Booting:
    freezer = cgroup.of_machine(plan, name)
    if freezer:
        cgroup.make(freezer)
    launch = plan.boot_dir / f"{name}.launch"
    launch.write_text(boot.launch_script(plan, name, freezer))
    (plan.boot_dir / f"{name}.boot").write_text(boot.boot_script(plan, name, visible, freezer))
    with plan.boot_log(name).open("a") as log:
        # The daemons must not be our children: they outlive this process, which would not reap them.
        starter = subprocess.Popen(
            ["setsid", "--fork", "sh", str(launch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd="/",
            env={"PATH": search_path(plan), "LANG": "C.UTF-8", "HOME": "/root"},
        )
    return _Booting(name, starter)


def _read_init_pid(plan: LabPlan, one: _Booting, deadline: float) -> ProcessId:
    """Return the machine's init process, whose pid the boot script prints after its mounts."""
    assert one.starter.stdout is not None
    poll = select.poll()  # not select: a lab of many machines has descriptors above 1,023
    poll.register(one.starter.stdout, select.POLLIN)
    readable = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    line = one.starter.stdout.readline().strip() if readable else ""
    process = ProcessId.find(int(line)) if line.isdecimal() else None
    if process is None:
        reason = plan.boot_log(one.name).read_text().strip() or f"no answer within {BOOT_DEADLINE_S:.0f} s"
        raise LabError(f"machine {one.name} did not start: {reason}")
    return process


def enter_argv(
    init: ProcessId, argv: Sequence[str], directory: str | os.PathLike[str], login: Login | None = None
) -> list[str]:
    """Return the command that runs `argv` inside a machine, and kills it when it is itself killed."""
    kinds = ["--mount", "--uts", "--net", "--pid", "--cgroup"]
    options = login.user.setpriv_options() if login else []
    inside = ["setpriv", "--pdeathsig", "KILL", *options, *_in_directory(argv, directory, login)]
    return ["nsenter", f"--target={init.pid}", *kinds, "--", *inside]


def login_argv(
    plan: LabPlan, visible: Sequence[Path], argv: Sequence[str], directory: str | os.PathLike[str], login: Login
) -> list[str]:
    """Return the command that runs `argv` on the login node as a user of the lab, in the same process."""
    become = ["setpriv", *login.user.setpriv_options(), *_in_directory(argv, directory, login)]
    return ["unshare", "--mount", "--", "sh", "-c", boot.login_script(plan, visible), "sh", *become]


def _in_directory(argv: Sequence[str], directory: str | os.PathLike[str], login: Login | None) -> list[str]:
    otherwise = str(login.home) if login else "/"
    return ["sh", "-c", _IN_DIRECTORY, "sh", os.fspath(directory), otherwise, *argv]


def processes(init: ProcessId) -> list[int]:
    """Return the pids, as seen from this host, of all processes inside a machine of the lab."""
    inside = namespace_id(init.pid, "pid")
    return [pid for pid in all_pids() if inside and namespace_id(pid, "pid") == inside]
