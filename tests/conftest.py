"""What every test gets: a private home, a tag on all it starts, and a check that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from muster.agent.ray.settings import temp_dir
from muster.process.cgroup import Cgroup, lock_group, own_directory
from tests.browser import Browser, Page, opened
from tests.ray_turns import turn
from tests.running import MusterCommand
from tests.schedule import GroupScheduling, order

# Started in the background of a shell, we would ignore these signals, and so would every command that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Timings depend on the machine: an example may take any time on a busy one.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")

TAG = "MUSTER_TEST_TAG"
SETTLE_S = 60.0  # what was ended may take a moment to be gone; what is still there then was left


def tagged_processes(tag: str) -> dict[int, str]:
    """Every process, in whatever namespace, that inherited the tag."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"{TAG}={tag}\0".encode() in (entry / "environ").read_bytes() + b"\0":
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ")[:150].decode(errors="replace")
                )
        except OSError:
            continue
    return found


def temp_dirs() -> set[str]:
    return {entry.name for entry in Path("/tmp").iterdir() if re.fullmatch("muster-[0-9a-f]{8}", entry.name)}


def unmentioned(names: set[str]) -> set[str]:
    """Return the temporary directories that no process mentions any more: another test may run beside this one."""
    if not names:
        return set()
    mentioned = b"".join(_environment_and_arguments())
    names = names - _of_living_agents(mentioned)
    return {name for name in names if f"/tmp/{name}".encode() not in mentioned and Path("/tmp", name).exists()}


def _of_living_agents(mentioned: bytes) -> set[str]:
    """An agent that puts logs away may be the last that knows of a directory, which is named after its run."""
    runs = re.findall(rb"agent\.pyz\0([^\0]+)\0", mentioned)
    return {Path(temp_dir(os.path.basename(run.decode()), 0, 0, 0)).parent.name for run in runs}


def _environment_and_arguments() -> Iterator[bytes]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()


def network_namespaces() -> set[str]:
    try:
        return set(os.listdir("/run/netns"))
    except FileNotFoundError:
        return set()


def control_groups() -> set[str]:
    """Groups that processes of this pid namespace made: others run tests on this machine, too."""
    places = [own_directory(""), own_directory("memory"), own_directory("pids")]
    places = [*places, os.path.dirname(places[0] or "")]
    name = re.compile(rf"muster-(scope|sandbox)-{os.stat('/proc/self/ns/pid').st_ino}-.*")
    return {
        f"{place}/{entry}"
        for place in filter(None, places)
        if os.path.isdir(place)
        for entry in os.listdir(place)
        if name.fullmatch(entry)
    }


# A group whose owner and supervisor were killed shows not which test had killed them if several run at the same time.
RUNS_ALONE = "PYTEST_XDIST_WORKER" not in os.environ


def left_groups(before: set[str]) -> set[str]:
    """Return the new groups whose creator has ended."""
    return {group for group in control_groups() - before if _is_unlocked(group)}


def _is_unlocked(group: str) -> bool:
    try:
        os.close(lock_group(group))
    except OSError:
        return False
    return True


PROCESS_STARTS = frozenset(["subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"])
_process_starts: list[str] = []  # of this test process, as Python's audit events report them


def _note_process_start(event: str, _: tuple[object, ...]) -> None:
    if event in PROCESS_STARTS:
        _process_starts.append(event)


sys.addaudithook(_note_process_start)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test, including one that killed things, that nothing of it is left.

    That is: no process, temporary directory, network namespace or control group.
    """
    tag = uuid.uuid4().hex
    monkeypatch.setenv(TAG, tag)
    dirs, namespaces, started, groups = temp_dirs(), network_namespaces(), len(_process_starts), control_groups()
    yield
    deadline = time.monotonic() + SETTLE_S
    if len(_process_starts) > started:  # reading all of /proc after each of thousands of tests takes minutes
        while (left := tagged_processes(tag)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"processes left behind: {left}"
        if request.node.get_closest_marker("kills_supervisors") is None and RUNS_ALONE:
            while (left_behind := left_groups(groups)) and time.monotonic() < deadline:
                time.sleep(0.05)
            for group in left_behind:
                Cgroup(group).remove()  # or it would be attributed to the next test
            assert not left_behind, f"control groups left behind: {sorted(left_behind)}"
    while (left_dirs := unmentioned(temp_dirs() - dirs)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left_dirs, f"temporary directories left behind: {sorted(left_dirs)}"
    assert network_namespaces() <= namespaces, "network namespaces left behind"


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray writes a token into the home directory, Muster an index of runs: neither may touch the user's own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "XDG_", "MUSTER_")) and name != TAG:
            monkeypatch.delenv(name)
    monkeypatch.setenv("MUSTER_SITE_CONFIG", str(home / "no-site-config.yaml"))  # not this machine's own


@pytest.fixture(autouse=True)
def ray_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test with Ray wait while as many others as there are processors use Ray, on all workers together.

    Ray gives up when a node takes longer than 30 s to start, which many starts at once on a busy machine do.
    """
    with turn() if request.node.get_closest_marker("ray") else contextlib.nullcontext():
        yield


@pytest.fixture
def muster(tmp_path: Path) -> MusterCommand:
    """The `muster` command, run in a directory of the test's own."""
    return MusterCommand(cwd=tmp_path, python=sys.executable)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--images", action="store_true", help="write the pictures in docs/images anew")
    parser.addoption("--slurm", metavar="RELEASE", default="installed", help="Slurm of the labs, such as 24.11")
    parser.addoption("--shared-filesystem", default="local", help="of labs: local, glusterfs, or glusterfs:SECONDS")
    parser.addoption("--golden", action="store_true", help="record the formats in tests/formats/golden again")


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures are kept: of the documentation with --images, else a place that is forgotten."""
    docs = Path(__file__).parents[1] / "docs" / "images"
    return docs if request.config.getoption("--images") else tmp_path_factory.mktemp("images")


@pytest.fixture(scope="session")
def has_ray() -> bool:
    return subprocess.run([sys.executable, "-c", "import ray"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.page()
    yield page
    page.close()
