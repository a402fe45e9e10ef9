"""A real Slurm for the tests of this directory, and `muster` on its login side."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.filesystems.gluster_lab import GlusterLab, why_no_glusterfs
from tests.running import MusterCommand, wait_for

from muster.lab import Lab, LabError
from muster.lab.releases import INSTALLED, provide
from muster.rundir import RunPaths
from muster.rundir.startup_heartbeat import read_startup_heartbeats

LAB_DIR = Path("/run/ml-tests" + os.environ.get("PYTEST_XDIST_WORKER", ""))  # labs can be up at the same time
WAIT_ONCE = 'echo "cycle $MUSTER_CYCLE"; [ $MUSTER_CYCLE != 0 ] || sleep 1000'  # a driver that has to be restarted
SET_UP_UNTIL_LOST = "until [ -e lost ]; do sleep 0.2; done"  # a --setup that lasts until the test has lost a node
MADE_BY_US = re.compile(r"muster-(?!ports-)")  # the leases of a host's ports outlive a run: others may hold some
REPOSITORY = Path(__file__).parents[2]  # may be a clone in /tmp, which the nodes have of their own


def why_no_lab(release: str = INSTALLED) -> str | None:
    if os.geteuid() != 0:
        return "the lab needs root"
    programs = ("munged", "ip", "tini", *(["slurmctld", "slurmd"] if release == INSTALLED else []))
    missing = [name for name in programs if shutil.which(name) is None]
    return f"the lab needs {', '.join(missing)}" if missing else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that use a lab; the tests of single modules of `muster.lab` run without one."""
    release = config.getoption("--slurm")
    reason = why_no_lab(release)
    if not reason:
        try:
            provide(release, print)  # here rather than within the time limit of the first test
        except LabError as error:
            raise pytest.UsageError(f"--slurm {release}: {error}") from None
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        uses_lab = "lab" in fixtures or item.get_closest_marker("lab") is not None
        if uses_lab and "tests/lab/" in str(item.path):
            item.add_marker(pytest.mark.lab)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def slurm_prefix(request: pytest.FixtureRequest) -> Path | None:
    """Where the release of Slurm of the option --slurm is; None for the installed one."""
    return provide(request.config.getoption("--slurm"), print)


class SharedLab:
    """Keeps one lab up until a module needs another one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lab: Lab | None = None
        self._options: dict[str, Any] = {}

    def with_options(self, options: dict[str, Any]) -> Lab:
        """Return a lab with these options whose nodes are all usable: the one that is up, or a new one."""
        if self._lab is None or options != self._options or not _is_as_new(self._lab):
            self.down()
            lab = new_lab(self._config, options)
            lab.up()
            self._lab, self._options = lab, options
        return self._lab

    def down(self) -> None:
        if self._lab is not None:
            self._lab.down()
        elif LAB_DIR.exists():  # of a test session that was killed
            Lab.for_cleanup(LAB_DIR).down()
        self._lab = None


def _is_as_new(lab: Lab) -> bool:
    return all(node.alive and node.link_up and node.slurm_state == "idle" for node in lab.status().nodes)


@pytest.fixture(scope="session")
def shared_lab(pytestconfig: pytest.Config) -> Iterator[SharedLab]:
    shared = SharedLab(pytestconfig)
    yield shared
    shared.down()


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, shared_lab: SharedLab, slurm_prefix: Path | None) -> Lab:
    """A lab of four nodes, or as the module's LAB says."""
    options = getattr(request.module, "LAB", {"nodes": 4})
    return shared_lab.with_options({"slurm_prefix": slurm_prefix, **options})


def new_lab(config: pytest.Config, options: dict[str, Any]) -> Lab:
    """The lab, with the filesystem that `--shared-filesystem` names in place of a local directory."""
    kind, _, caches = config.getoption("--shared-filesystem").partition(":")
    if kind == "local":
        return Lab(state_dir=LAB_DIR, shared=[REPOSITORY], **options)
    if (reason := why_no_glusterfs()) is not None:
        pytest.skip(reason)
    return GlusterLab(float(caches) if caches else None, state_dir=LAB_DIR, shared=[REPOSITORY], **options)


@pytest.fixture
def slurm(lab: Lab, request: pytest.FixtureRequest) -> Iterator[SlurmCommand]:
    """`muster` on the lab's login side, in a directory that all nodes share. No job outlives the test."""
    directory = Path(tempfile.mkdtemp(prefix=re.sub(r"\W+", "-", request.node.name)[:40] + "-", dir=LAB_DIR / "shared"))
    directory.chmod(0o755)
    command = SlurmCommand(cwd=directory, python=sys.executable, env=lab.env_additions(), lab=lab)
    yield command
    lab.exec(["sh", "-c", "scancel $(squeue --noheader --format=%A)"], capture_output=True)
    wait_for("no job in the queue", lambda: not command.slurm("squeue", "--noheader").stdout.strip())
    wait_for("no directory of ours on a node", lambda: not command.left_on_nodes(), instead=command.left_on_nodes)


class SlurmCommand(MusterCommand):
    """`muster` with Slurm around it."""

    def __init__(self, cwd: Path, python: str, env: dict[str, str], lab: Lab) -> None:
        super().__init__(cwd, python, env)
        self.lab = lab

    def run(
        self, *args: str, nodes: int = 4, ray: bool = False, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return self(*self.run_args(*args, nodes=nodes, ray=ray), timeout=timeout)

    def run_args(self, *args: str, nodes: int = 4, ray: bool = False) -> list[str]:
        return ["run", "--nodes", str(nodes), "--python", self.python, *([] if ray else ["--no-ray"]), *args]

    def slurm(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env={**os.environ, **self.env}, cwd=self.cwd, capture_output=True, text=True, timeout=120
        )

    def on_node(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.lab.exec(list(argv), node=node, capture_output=True, text=True)

    def live_nodes(self) -> list[str]:
        return [node.name for node in self.lab.status().nodes if node.alive]

    def left_on_nodes(self) -> list[str]:
        """Return what agents left in /tmp of the nodes; one that Slurm does not track removes it a moment later."""
        entries = [
            (name, entry) for name in self.live_nodes() for entry in self.on_node(name, "ls", "/tmp").stdout.split()
        ]
        return [f"{name}:/tmp/{entry}" for name, entry in entries if MADE_BY_US.match(entry)]

    def job(self, job_id: str) -> dict[str, str]:
        """Slurm's own view of a job."""
        words = self.slurm("scontrol", "show", "job", job_id).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended_job(self, job_id: str) -> dict[str, str]:
        wait_for(
            f"job {job_id} to end", lambda: self.job(job_id).get("JobState") not in ("RUNNING", "COMPLETING", "PENDING")
        )
        return self.job(job_id)

    def hosts(self) -> list[str]:
        """The names of the run's nodes, by number."""
        return (self.run_dir() / "attempt-0" / "hosts").read_text().split()

    def wait_for_set_up(self, nodes: int) -> None:
        """Every node of the run has written a heartbeat.

        The launcher dies with the batch host: a node that it has not started by then never starts. The first heartbeat
        is written beside the rest of the prelude, so a node's log does not show that there is one.
        """
        first = lambda: next(self.cwd.glob("muster-runs/*/attempt-0"), None)  # noqa: E731
        attempt = RunPaths(str(wait_for("the attempt", first).parent)).attempt(0)
        wait_for("the set-up on every node", lambda: len(read_startup_heartbeats(attempt, range(nodes))) == nodes)

    @contextmanager
    def lost(self, victim: str) -> Iterator[None]:
        """Without this node, which is killed, and is there again afterwards."""
        self.lab.kill_node(victim)
        try:
            yield
        finally:
            self.lab.heal(victim)

    def steps(self, job_id: str) -> list[str]:
        out = self.slurm("squeue", "--steps", f"--jobs={job_id}", "--noheader", "--format=%i").stdout
        return [step for step in out.split() if not step.endswith((".batch", ".extern"))]


def begins_again(slurm: SlurmCommand, job_id: str) -> None:
    """Slurm would wait two minutes: started at once, the job would meet its own revoked credential and fail."""
    wait_for(f"job {job_id} to be pending again", lambda: slurm.job(job_id)["JobState"] == "PENDING")
    slurm.slurm("scontrol", "update", f"jobid={job_id}", "starttime=now+2")


def agent_on(slurm: SlurmCommand, node: str) -> int:
    """Wait until the node's agent runs; return its pid on this machine."""
    look = lambda: [pid for pid in _processes(slurm, node, "python") if b"agent.pyz" in _command_line(pid)]  # noqa: E731
    return wait_for(f"the agent of {node}", look)[0]


def process_on(slurm: SlurmCommand, node: str, name: str) -> int:
    """Wait until the node has a process of that name; return the pid, on this machine, of the one started last."""
    return max(wait_for(f"{name} on {node}", lambda: _processes(slurm, node, name)))


def _processes(slurm: SlurmCommand, node: str, name: str) -> list[int]:
    """By their UTS namespace, which is the node's own."""
    (found,) = [entry for entry in slurm.lab.status().nodes if entry.name == node]
    space = os.readlink(f"/proc/{found.pid}/ns/uts")
    return [pid for pid in slurm.lab.processes(node) if _is(pid, name, space)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def _is(pid: int, name: str, space: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith(name) and os.readlink(f"/proc/{pid}/ns/uts") == space
    except OSError:
        return False  # it has ended meanwhile
