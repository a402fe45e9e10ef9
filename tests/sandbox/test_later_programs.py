"""What a program does to its worker changes nothing for the programs that run there after it: at every level."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.sandbox.conftest import EVERY_LEVEL, serve_at

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

# Everything of its surroundings that a program's result may depend on. Where the limit on processes counts all of the
# user's, it follows their number; that a child can be started is tried.
PROBE = """
import ctypes, json, os, resource, subprocess
libc = ctypes.CDLL(None)
IOPRIO_GET = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
found = {
    "limits": [resource.getrlimit(limit) for limit in range(16) if limit != resource.RLIMIT_NPROC],
    "cpus": sorted(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0),
    "nice": os.nice(0), "io": libc.syscall(IOPRIO_GET, 1, 0),
}
try:
    found["beside"] = sorted(os.listdir(".."))
except OSError:
    found["beside"] = "refused"
for place in (os.getcwd(), os.environ["TMPDIR"], "/dev/shm"):
    try:
        status = os.stat(place)
        if place == "/dev/shm" and status.st_uid != os.getuid():
            continue  # the host's, where programs have no own
        found[place] = [
            oct(status.st_mode), status.st_uid == os.getuid(), status.st_gid == os.getgid(), os.listxattr(place),
            [name for name in os.listdir(place) if not os.path.ismount(f"{place}/{name}")],
        ]
        with open(f"{place}/written", "w") as file:
            file.write("x" * 100_000)
        os.mkdir(f"{place}/made")
        found[place] += [oct(os.stat(f"{place}/{name}").st_mode) for name in ("written", "made")]
    except OSError as error:
        found[place] = str(error)
found["child"] = subprocess.run(["/bin/echo", "ran"], capture_output=True, text=True).stdout
where = os.getcwd()
print(json.dumps(found).replace(where, "HOME").replace(os.environ["TMPDIR"], "TMP"))
"""
ATTACK = """
import ctypes, os, resource, struct
libc = ctypes.CDLL(None)
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
worker, home, tmp, shm = os.getppid(), os.getcwd(), os.environ["TMPDIR"], "/dev/shm"
def acl(kind):
    entries = ((1, 0, -1), (4, 0, -1), (32, 0, -1))  # owner, group, others: nothing
    return kind, struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
def limit(which, value):
    resource.prlimit(worker, which, (value, value))
def nest():
    for _ in range(1500):  # more than Python recurses
        os.mkdir("d")
        os.chdir("d")
try:
    DO
except (OSError, ValueError):
    pass
"""
ATTACKS = {
    "mode of home": "os.chmod(home, 0o500)",
    "mode of tmp": "os.chmod(tmp, 0)",
    "mode of shm": "os.chmod(shm, 0) if os.stat(shm).st_uid == os.getuid() else None",
    "mode of all": "os.chmod(tmp, 0); os.chmod(home, 0)",
    "mode of the parent": "os.chmod('..', 0)",
    "setgid": "os.chmod(home, 0o2700); os.chmod(tmp, 0o2700)",
    "default acl": "os.setxattr(home, *acl('system.posix_acl_default'))",
    "access acl": "os.setxattr(tmp, *acl('system.posix_acl_access'))",
    "xattr": "os.setxattr(home, 'user.left', b'x')",
    "files": "limit(resource.RLIMIT_FSIZE, 0)",
    "descriptors": "limit(resource.RLIMIT_NOFILE, 5)",
    "address space": "limit(resource.RLIMIT_AS, 1 << 20)",
    "processes": "limit(resource.RLIMIT_NPROC, 1)",
    "cpu time": "limit(resource.RLIMIT_CPU, 1)",
    "stack": "limit(resource.RLIMIT_STACK, 1 << 16)",
    "cpus": "os.sched_setaffinity(worker, [max(os.sched_getaffinity(0))])",
    "policy": "os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0))",
    "nice of worker": "os.setpriority(os.PRIO_PROCESS, worker, 19)",
    "nice of group": "os.setpriority(os.PRIO_PGRP, os.getpgid(worker), 19)",
    "nice of user": "os.setpriority(os.PRIO_USER, 0, 19)",
    "io of worker": "libc.syscall(IOPRIO_SET, 1, worker, 3 << 13)",
    "io of user": "libc.syscall(IOPRIO_SET, 3, os.getuid(), 3 << 13)",
    "nested": "nest()",
    "nested and locked": "nest(); os.chmod('..', 0); os.chmod(home + '/d/d/d', 0); os.chmod(home + '/d', 0o100)",
    "beside": "open('../left', 'w').close()",
    "another home": "os.rename(home, home + '-away'); os.mkdir(home)",
    "link to home": "os.rename(tmp, tmp + '-away'); os.symlink(home, tmp)",
}


@pytest.fixture(scope="module")
def lone() -> Iterator[Callable[[str], Served]]:
    """Servers with a single worker, one for each level: every program follows the one before."""
    running: dict[str, Served] = {}

    def of(level: str) -> Served:
        if level not in running:
            running[level] = serve_at(level, workers_min=1, workers_max=1, scratch_mb=64, processes=32)
        return running[level]

    yield of
    for served in running.values():
        served.clean()


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_a_program_cannot_change_what_the_next_one_finds(
    lone: Callable[[str], Served], level: str, attack: str
) -> None:
    box = lone(level)
    before = box.out(PROBE)
    box.execute(ATTACK.replace("DO", ATTACKS[attack]), timeout=60)
    assert box.out(PROBE) == before


C_PROGRAM = '#include <stdio.h>\nint main(void) { puts("right"); return 0; }\n'


def test_every_program_is_run_once_and_right_while_others_ruin_their_workers(own: Callable[..., Served]) -> None:
    """Four clients that poison the workers which four others use, two workers for all."""
    box = own(workers_min=2, workers_max=2, scratch_mb=64, queue_wait_s=3.5)
    wrong: list[object] = []

    def poison(attack: str) -> None:
        for _ in range(10):
            box.execute(ATTACK.replace("DO", attack))

    def use(number: int) -> None:
        for turn in range(5):
            mark = f"{number}-{turn}"
            for answer, expected in (
                (box.execute(f"open('f', 'w').write('{mark}'); print(open('f').read())"), f"{mark}\n"),
                (box.execute(C_PROGRAM, "cpp"), "right\n"),
                (box.cell(f"open('s', 'a').write('{mark}'); print(open('s').read())", box.new_session()), f"{mark}\n"),
            ):
                if answer["stdout"] != expected or answer["process_status"] != "completed":
                    wrong.append(answer)

    attacks = (ATTACKS["mode of home"], ATTACKS["mode of all"], ATTACKS["default acl"], ATTACKS["another home"])
    clients = [threading.Thread(target=poison, args=(attack,)) for attack in attacks]
    clients += [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert wrong == []
