"""A run ends with the driver's code although KILL cannot end a child whose filesystem hangs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.hung_filesystem import WAITS_IN, Hung, hung_filesystem
from tests.running import MusterCommand, wait_for

from muster.process.proctree import read_process, read_stat

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounting a filesystem that hangs needs root and FUSE"
)
DEADLINE_S = 150.0  # what takes half a minute on an idle machine
LEAVES_ONE = "cat {path} & echo $! >$MUSTER_OUTPUT_DIR/tmp; cd $MUSTER_OUTPUT_DIR; mv tmp pid"
UNTIL_IT_HANGS = "until [ -e $MUSTER_OUTPUT_DIR/hangs ]; do sleep 0.05; done"


def test_an_unkillable_child_of_an_ended_driver_or_rank_does_not_hold_the_run(tmp_path: Path) -> None:
    """Both kinds of run at once: most of the time is the wait for what does not end."""
    commands = []
    for name in ("driver", "gang"):
        (tmp_path / name).mkdir()
        commands.append(MusterCommand(cwd=tmp_path / name, python=sys.executable))
    driver, gang = commands
    with hung_filesystem(tmp_path / "hung") as hung:
        of_driver, of_gang = (LEAVES_ONE.format(path=f"{hung.path}-{name}") for name in ("driver", "gang"))
        as_driver = ("--", "bash", "-c", f"{of_driver}; {UNTIL_IT_HANGS}; exit 7")
        as_gang = ("--procs-per-node", "1", "--", "bash", "-c", f"[ $RANK = 0 ] || {{ {of_gang}; }}; {UNTIL_IT_HANGS}")
        processes = [driver.start(*driver.local_args(*as_driver, nodes=1)), gang.start(*gang.local_args(*as_gang))]
        pids = [until_it_hangs(each, hung) for each in commands]
        outputs = [process.communicate(timeout=DEADLINE_S) for process in processes]
        assert [read_stat(pid)[0] for pid in pids] == [b"D", b"D"]  # they still hang
        assert [process.returncode for process in processes] == [7, 0], outputs
        for pid, host, (_, err) in zip(pids, ("node-0", "node-1"), outputs, strict=True):
            assert f"{host}: process {pid} (cat) could not be ended" in err
            assert "state D" in err and WAITS_IN in err
        assert driver.status()["driver"] == {"state": "ended", "exit_code": 7}
    wait_for("what hung to be gone", lambda: not any(map(read_process, pids)))


def until_it_hangs(muster: MusterCommand, hung: Hung) -> int:
    """The pid of the child; its parent goes on when this has returned."""

    def look() -> Path | None:
        return next((muster.cwd / "muster-runs").glob("*/output/pid"), None)

    file = wait_for("the child's pid", look)
    pid = int(file.read_text())
    wait_for("the child to hang", lambda: hung.holds(pid))
    (file.parent / "hangs").touch()
    return pid
