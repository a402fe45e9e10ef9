"""The files that programs write, and the host's files that they are shown: nothing of the host is changed or forged."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.running import wait_for
from tests.sandbox.conftest import LEVELS

if TYPE_CHECKING:
    from tests.sandbox.serving import Answer, Served

FULL = [level for level in LEVELS if level in ("root", "user")]


@pytest.fixture
def below_tmp() -> Iterator[Path]:
    """A directory below /tmp, where the sandbox has its own: as an environment's can be."""
    place = Path(tempfile.mkdtemp(prefix="below-tmp-", dir="/tmp"))
    os.chmod(place, 0o755)
    yield place
    shutil.rmtree(place)


# -- what is removed --------------------------------------------------------------------------------------------------

SWAP = """
import ctypes, os
libc = ctypes.CDLL(None)
pairs = []
for number in range(4):
    open(f"f{number}", "w").close()
    os.symlink(TARGET, f"l{number}")
    os.makedirs(f"d{number}/e")
    os.symlink(os.path.dirname(TARGET), f"m{number}")
    pairs += [(f"f{number}".encode(), f"l{number}".encode()), (f"d{number}".encode(), f"m{number}".encode())]
open("begun", "w").close()
while True:
    for one, other in pairs:
        libc.renameat2(-100, one, -100, other, 2)
"""
TRIES = 5


def deleted_while_it_runs(box: Served, code: str) -> Answer:
    """What is answered to a program whose workspace is deleted when it has made the file `begun`."""
    name, answers = box.new_session(), []

    def run() -> None:
        answers.append(box.execute(code, timeout=120, headers={"X-Workspace-ID": name}, report=True))

    program = threading.Thread(target=run)
    program.start()
    (begun,) = wait_for("the program", lambda: list(box.place.glob(f"*/box/workspace-{name}-*/home/begun")))
    assert box.ask("DELETE", f"/workspaces/{name}").status == 200
    program.join(60)
    wait_for("the directory's end", lambda: not begun.parents[1].exists())
    return answers[0]


@pytest.mark.parametrize("level", LEVELS)
def test_a_workspace_is_removed_after_its_programs_and_nothing_else_is_touched(
    own: Callable[..., Served], level: str
) -> None:
    """Its program exchanges files and directories with links to the host's all the time."""
    box = own(level)
    precious = box.place / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    user = os.stat(box.ready).st_uid  # the service's: its rights are what could be misused
    for path, mode in ((precious / "file", 0o640), (precious, 0o750)):
        os.chown(path, user, user)
        os.chmod(path, mode)
    for _ in range(TRIES):
        answer = deleted_while_it_runs(box, SWAP.replace("TARGET", repr(str(precious / "file"))))
        assert (answer["reason"], answer["process_status"]) == ("deleted", "error")
        assert answer["stderr"] == "Execution ended: its workspace was deleted\n"
        assert [path.stat().st_mode & 0o7777 for path in (precious / "file", precious)] == [0o640, 0o750]
        assert (precious / "file").read_text() == "kept"


# -- what is shown ----------------------------------------------------------------------------------------------------

PLANT = """
import os, time
top = TOP
for do in (
    lambda: os.rename(top, top + "-away"), lambda: os.rmdir(top), lambda: os.chmod(top, 0o777),
    lambda: os.rename(top + "/deep", top + "/away"), lambda: open(top + "/new", "w"), lambda: os.symlink(VICTIM, top),
):
    try:
        do()
    except OSError:
        pass
open("planted", "w").close()
while not os.path.exists("seen"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("level", FULL)
def test_no_mount_point_is_made_through_a_link_that_a_program_planted(
    own: Callable[..., Served], level: str, below_tmp: Path
) -> None:
    (below_tmp / "deep").mkdir()
    (below_tmp / "deep" / "file").write_text("shown")
    box = own(level, read_only=[str(below_tmp / "deep" / "file")])
    victim = box.place / "victim"
    (victim / "deep").mkdir(parents=True)
    (victim / "deep" / "file").write_text("kept")
    user = os.stat(box.ready).st_uid
    for path in (victim, victim / "deep", victim / "deep" / "file"):
        os.chown(path, user, user)
    headers = {"X-Workspace-ID": "w"}
    code = PLANT.replace("TOP", repr(str(below_tmp))).replace("VICTIM", repr(str(victim)))
    planting = threading.Thread(target=box.execute, args=(code,), kwargs={"headers": headers, "timeout": 60})
    planting.start()
    (begun,) = wait_for("the program", lambda: list(box.place.glob("*/box/workspace-w-*/home/planted")))
    look = f"print(open({str(below_tmp / 'deep' / 'file')!r}).read())"
    seen = box.execute(look, headers=headers)  # in another worker of the same workspace
    (begun.parent / "seen").touch()
    planting.join(60)
    assert sorted(path.name for path in victim.rglob("*")) == ["deep", "file"]
    assert (victim / "deep" / "file").read_text() == "kept"
    assert seen["stdout"] == "shown\n"


@pytest.mark.parametrize("level", FULL)
def test_what_is_shown_read_only_cannot_be_forged_for_later_programs(
    own: Callable[..., Served], level: str, below_tmp: Path
) -> None:
    library = below_tmp / "env" / "lib"
    library.mkdir(parents=True)
    (library / "shown.py").write_text("print('genuine')\n")
    box = own(level, read_only=[str(library)], workers_min=1, workers_max=1)
    forge = f"""
import os
library = {str(library)!r}
for path in (library, os.path.dirname(library), os.path.dirname(os.path.dirname(library))):
    for do in (lambda: os.rename(path, path + "-away"), lambda: os.chmod(path, 0o777), lambda: os.rmdir(path)):
        try:
            do()
            print("changed", path)
        except OSError:
            pass
for do in (lambda: os.makedirs(library), lambda: open(library + "/shown.py", "w").write("print('forged')")):
    try:
        do()
        print("wrote")
    except OSError:
        pass
"""
    for _ in range(3):
        assert box.out(forge) == ""
        assert box.out(f"import sys; sys.path.insert(0, {str(library)!r}); import shown") == "genuine\n"


SCRATCH = """
import os, sys
tops = (os.getcwd(), os.environ["TMPDIR"], "/dev/shm")
found = [os.path.join(top, name) for top in tops for name in os.listdir(top)]
print([path for path in found if not any(place.startswith(path) for place in (sys.prefix, *sys.path))])
open(os.environ["TMPDIR"] + "/left", "w").close()
"""


@pytest.mark.parametrize("level", FULL)
def test_of_the_host_s_tmp_a_program_sees_only_the_paths_of_read_only_files(
    own: Callable[..., Served], level: str, below_tmp: Path
) -> None:
    (below_tmp / "env" / "lib").mkdir(parents=True)
    (below_tmp / "env" / "lib" / "f").write_text("shown")
    (below_tmp / "file").write_text("shown too")
    (below_tmp / "hidden").write_text("hidden")
    shown = [str(below_tmp / "env" / "lib"), str(below_tmp / "file")]
    in_shm = Path(tempfile.mkdtemp(prefix="below-shm-", dir="/dev/shm"))
    try:
        os.chmod(in_shm, 0o755)
        (in_shm / "g").write_text("in memory")
        box = own(level, read_only=[*shown, str(in_shm)], workers_min=1, workers_max=1)
        for _ in range(3):
            assert box.out(SCRATCH) == f"{[str(below_tmp), str(in_shm)]}\n"
        code = f"cd {below_tmp}; ls -A . env env/lib; cat env/lib/f file {in_shm}/g; touch x env/x env/lib/x"
        answer = box.execute(code, "shell")
        assert answer["stdout"] == ".:\nenv\nfile\n\nenv:\nlib\n\nenv/lib:\nf\nshownshown tooin memory"
        assert answer["stderr"].count("Read-only file system") == 3
    finally:
        shutil.rmtree(in_shm)


# It ends when its home was opened twice from outside. The check of what it has written opens the home first: by then
# one check has been completed, which would have killed the program for what it counts beyond the limit.
AFTER_A_CHECK = """
import ctypes, os, select
watch = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)
assert ctypes.CDLL(None).inotify_add_watch(watch, os.getcwd().encode(), 0x20) >= 0  # IN_OPEN
opened = 0
while opened < 2:
    assert select.select([watch], [], [], 100)[0], "nobody has looked"
    opened += len(os.read(watch, 16)) // 16
print("checked")
"""


@pytest.mark.parametrize("level", FULL)
def test_read_only_files_do_not_count_as_written(own: Callable[..., Served], level: str, below_tmp: Path) -> None:
    (below_tmp / "large").write_bytes(os.urandom(4 << 20))
    box = own(level, read_only=[str(below_tmp)], scratch_mb=1)
    answer = box.execute(AFTER_A_CHECK, headers={"X-Workspace-ID": "w"}, report=True, timeout=120)
    assert (answer["process_status"], answer["reason"], answer["stdout"]) == ("completed", None, "checked\n"), answer
