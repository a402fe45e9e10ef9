"""Slurm's commands as scripts on PATH that note how they are called and answer what a test has prepared."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from muster.slurm import client

_COMMON = """#!/bin/sh
here=${0%/*}/..
echo "${0##*/} $*" >>"$here/calls"
[ ! -e "$here/refuses" ] || { cat "$here/refuses" >&2; exit 1; }
cluster= jobs=
for word; do
  case $word in --clusters=*) cluster=${word#*=} ;; --jobs=*) jobs=,${word#*=}, ;; esac
done
"""

_COMMANDS = {
    "squeue": """
[ -z "$cluster" ] || echo "CLUSTER: $cluster"
[ -e "$here/queue-$cluster" ] || exit 0
while IFS='|' read -r id rest; do
  case $jobs in '' | *",${id%%+*},"* | *",${id%%_*},"*) echo "$id|$rest" ;; esac
done <"$here/queue-$cluster"
""",
    "scancel": "",
    "scontrol": """
case "$*" in
  *"show config"*) echo "ClusterName             = home"; echo "KillWait                = 30 sec" ;;
  *"show job"*) cat "$here/job" 2>/dev/null ;;
  *"show hostnames"*) for last; do :; done; echo "$last" | tr , '\\n' ;;
esac
""",
    "sbatch": """
case "$*" in
  *--test-only*) [ ! -e "$here/unfit" ] || { cat "$here/unfit" >&2; exit 1; }; exit 0 ;;
esac
last=$(cat "$here/last" 2>/dev/null || echo 16)
echo $((last + 1)) >"$here/last"
for word; do [ ! -f "$word" ] || written=$(sed -n 's/^#SBATCH --clusters=//p' "$word" | head -n 1); done
chosen=${cluster:-${SBATCH_CLUSTERS:-${SLURM_CLUSTERS:-$written}}} # a variable goes before the script
echo "$((last + 1))${chosen:+;${chosen##*,}}"
""",
    "sinfo": """
case "$*" in *--Node*) printf 'n%d\\n' 0 1 2 3 4 5 6 7 ;; *) echo 'lab* 64' ;; esac
""",
}


class FakeSlurm:
    """What Slurm knows, and what it was asked to do."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "bin").mkdir(parents=True)
        for name, body in _COMMANDS.items():
            program = root / "bin" / name
            program.write_text(_COMMON + body)
            program.chmod(0o755)
        self.path = str(root / "bin")

    @property
    def calls(self) -> list[str]:
        calls = self._root / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def cannot_fit(self, why: str) -> None:
        """No job with the tested options could ever run."""
        (self._root / "unfit").write_text(f"sbatch: error: {why}\n")

    def called(self, program: str) -> list[str]:
        return [call.partition(" ")[2] for call in self.calls if call.startswith(program + " ")]

    def knows(
        self,
        job_id: str,
        state: str,
        script: str,
        restarts: int = 0,
        uid: int | None = None,
        submitted: float | None = None,
        cluster: str = "",
    ) -> None:
        """A job, or another state of one that is known."""
        queue = self._root / f"queue-{cluster}"
        others = [
            line for line in (queue.read_text().splitlines() if queue.exists() else []) if line.split("|")[0] != job_id
        ]
        uid, submitted = os.geteuid() if uid is None else uid, time.time() if submitted is None else submitted
        line = f"{job_id}|{state}|{restarts}|{uid}|{submitted:.0f}|{script}|"
        queue.write_text("\n".join([*others, line]) + "\n")

    def shows(self, job: str) -> None:
        """The answer to `scontrol show job`."""
        (self._root / "job").write_text(job + "\n")

    def refuses(self, error: str) -> None:
        """From now on every command fails."""
        (self._root / "refuses").write_text(error + "\n")


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm's commands, of which only these are found first."""
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{fake.path}:{os.environ['PATH']}")
    client._config.cache_clear()
    return fake
