"""The lab is a real Slurm: its nodes are isolated, its commands work, faults can be repaired, and it leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.lab import lab as lab_command
from muster.lab import Lab, LabError, cgroup, requirements, state
from muster.lab.errors import LabUnavailable
from muster.lab.plan import LabPlan
from muster.lab.process import ProcessId

SLURMD_TIMEOUT_S = 5
NOTICE_DEADLINE_S = SLURMD_TIMEOUT_S + 115.0
NAMES = {"n1", "n2", "n3", "n4"}

pytestmark = pytest.mark.lab


def why_not() -> str | None:
    """Why no lab can run here, or None if one can."""
    try:
        requirements.check(LabPlan(nodes=1, proctrack="pgid"))
    except LabUnavailable as reason:
        return str(reason)
    return None


def proctrack() -> str:
    return "cgroup" if (cgroup.FREEZER / "cgroup.procs").exists() else "pgid"


def eventually(what: str, condition: Callable[[], bool], deadline_s: float = 120.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.05)


def number_of(place: Path) -> int:
    """Return the number of a lab in this place, a hash of the path."""
    return LabPlan(nodes=1, state_dir=place).number


def free_directory(prefix: str, *taken: Path) -> Path:
    """Return a place for a lab whose number is not that of another lab that the tests may have up at the same time."""
    others = {number_of(place) for place in (*(Path(f"/run/ml-testsgw{worker}") for worker in range(8)), *taken)}
    places = (Path(f"{prefix}-{os.getpid()}-{index}") for index in range(1000))
    return next(place for place in places if number_of(place) not in others)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def lab(shared: Path, slurm_prefix: Path | None) -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(f"no lab here: {reason}")
    directory = free_directory("/run/muster-lab-test")
    options = {"slurmd_timeout": SLURMD_TIMEOUT_S, "slurm_prefix": slurm_prefix}
    four = Lab(4, proctrack(), state_dir=directory, shared=[shared], **options)
    with four:
        yield four
    assert Lab.leftovers(directory) == []


def output(lab: Lab, *argv: str, node: str | None = None, cwd: Path | None = None, stdin: str = "") -> str:
    done = lab.exec(argv, node=node, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def is_down(lab: Lab, node: str) -> bool:
    return any(one.name == node and one.slurm_state == "down*" for one in lab.status().nodes)


def commands_on(lab: Lab, node: str) -> dict[int, str]:
    lines = {}
    for pid in lab.processes(node):
        try:
            lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return lines


def runs_on(lab: Lab, node: str, wanted: set[str]) -> bool:
    return wanted <= set(commands_on(lab, node).values())


# The cluster works


def test_srun_from_the_login_side_reaches_every_node(lab: Lab) -> None:
    assert set(output(lab, "srun", "-N4", "hostname").split()) == NAMES


def test_salloc_and_srun_pass_input_and_output(lab: Lab) -> None:
    said = output(lab, "salloc", "-N2", "--quiet", "srun", "--label", "cat", stdin="hello\n")
    assert sorted(said.splitlines()) == ["0: hello", "1: hello"]


def test_a_batch_job_reaches_the_other_nodes_and_stays_visible(lab: Lab, shared: Path) -> None:
    script = "hostname; srun -N3 --ntasks-per-node=1 hostname; echo gpus $CUDA_VISIBLE_DEVICES"
    argv = ["sbatch", "-N3", "--gpus-per-node=2", "--output=out.txt", "--wait", "--parsable", f"--wrap={script}"]
    job = output(lab, *argv, cwd=shared).strip()
    first, *others, gpus = (shared / "out.txt").read_text().splitlines()
    assert len(set(others)) == 3 and first in others and set(others) <= NAMES
    assert gpus == "gpus 0,1"
    assert "JobState=COMPLETED" in output(lab, "scontrol", "show", "job", job)


def test_commands_on_a_node_need_no_environment(lab: Lab) -> None:
    assert set(output(lab, "env", "-u", "SLURM_CONF", "sinfo", "-hNo", "%N", node="n2").split()) == NAMES


def test_both_partitions_have_all_nodes(lab: Lab) -> None:
    assert output(lab, "sinfo", "-ho", "%P %D").splitlines() == ["lab* 4", "long 4"]


# The nodes are apart


def test_each_node_has_its_own_name_address_and_processes(lab: Lab) -> None:
    assert output(lab, "hostname", node="n3").strip() == "n3"
    assert lab.plan.address("n3") in output(lab, "ip", "-brief", "address", node="n3")
    assert "tini" in output(lab, "cat", "/proc/1/cmdline", node="n3")


def test_tmp_and_shm_are_private_and_shared_directories_are_not(lab: Lab, shared: Path) -> None:
    for directory in ("/tmp", "/dev/shm"):
        mine = f"{directory}/muster-lab-test-private"
        output(lab, "touch", mine, node="n1")
        assert not Path(mine).exists()
        assert lab.exec(["test", "-e", mine], node="n2").returncode == 1
    for directory in (str(shared), lab.env()["MUSTER_LAB_SHARED"]):
        output(lab, "touch", f"{directory}/from-n1", node="n1")
        output(lab, "test", "-e", f"{directory}/from-n1", node="n2")
        assert Path(directory, "from-n1").exists()


def test_nodes_know_each_others_names_and_find_no_others(lab: Lab) -> None:
    assert output(lab, "getent", "hosts", "n4", node="n1").split() == [lab.plan.address("n4"), "n4"]
    assert lab.exec(["getent", "hosts", "nowhere.example.org"], node="n1").returncode == 2


def test_the_end_of_a_step_on_one_node_does_not_affect_others(lab: Lab) -> None:
    task = "setsid sleep 4321 & exec sleep 1234"
    step = lab.popen(["srun", "-N4", "--kill-on-bad-exit=0", "--wait=0", "sh", "-c", task], stderr=subprocess.PIPE)
    both = {"sleep 1234", "sleep 4321"}
    try:
        for node in NAMES:
            eventually(f"the step runs on {node}", partial(runs_on, lab, node, both))
        os.kill(next(pid for pid, line in commands_on(lab, "n2").items() if line == "sleep 1234"), signal.SIGKILL)
        if lab.plan.proctrack == "cgroup":
            eventually("n2's detached process ends", lambda: not both & set(commands_on(lab, "n2").values()))
        for node in NAMES - {"n2"}:
            assert runs_on(lab, node, both), f"{node}'s part of the step was ended too"
    finally:
        lab.exec(["scancel", "--user=root"])
        step.communicate(timeout=180)


def test_each_node_tracks_a_step_in_a_cgroup_of_its_own(lab: Lab) -> None:
    if lab.plan.proctrack != "cgroup":
        pytest.skip("this machine has no cgroup v1 freezer")
    lines = output(lab, "srun", "-N4", "--label", "grep", "freezer", "/proc/self/cgroup").splitlines()
    assert len(lines) == 4 and all("/step_" in line and "/.." not in line for line in lines)
    assert {path.name for path in cgroup.root(lab.plan).iterdir() if path.is_dir()} >= NAMES


# It breaks and heals


def test_death_and_partition_are_noticed_and_healed(lab: Lab, tmp_path: Path) -> None:
    log = tmp_path / "srun.log"
    spared = ["--verbose", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    with log.open("wb") as stderr:
        step = lab.popen(["srun", "-N3", "-w", "n3", "-x", "n2", *spared, "sleep", "12"], stderr=stderr)
    # srun ends a step whose launch a node has not confirmed, and a program may run before the node confirms its start.
    eventually("srun knows that the step runs on all nodes", lambda: log.read_text().count("1 tasks started") == 3)
    lab.kill_node("n3")
    lab.partition("n2")
    status = {node.name: node for node in lab.status().nodes}
    assert not status["n3"].alive
    assert status["n2"].alive and not status["n2"].link_up
    assert output(lab, "hostname", node="n2").strip() == "n2"
    for node in ("n3", "n2"):
        eventually(f"Slurm notices {node}", partial(is_down, lab, node), NOTICE_DEADLINE_S)
    step.wait(timeout=180)
    told = log.read_text()
    assert step.returncode == (0 if lab.status().slurm_version.startswith("22.05") else 1), told
    assert "Node failure on n3" in told, "srun on the login side does not report the failure"
    for node in ("n3", "n2"):
        lab.heal(node)
        assert output(lab, "srun", "-w", node, "hostname").strip() == node
    assert set(output(lab, "srun", "-N4", "hostname").split()) == NAMES


def test_a_node_healed_before_slurm_missed_it_is_usable(lab: Lab) -> None:
    lab.kill_node("n4")
    lab.heal("n4")
    assert output(lab, "srun", "-w", "n4", "hostname").strip() == "n4"


def test_a_node_dies_with_everything_on_it(lab: Lab) -> None:
    inside = lab.popen(["sleep", "5678"], node="n1")
    eventually("it runs on n1", lambda: "sleep 5678" in commands_on(lab, "n1").values())
    lab.kill_node("n1")
    assert inside.wait(timeout=120) != 0
    with pytest.raises(LabError, match="heal n1"):
        lab.exec(["true"], node="n1")
    lab.heal("n1")


# Up and down


def test_a_second_lab_in_the_same_place_is_refused(lab: Lab) -> None:
    with pytest.raises(LabError, match="already up"):
        Lab(1, state_dir=lab.plan.state_dir).up()
    assert set(output(lab, "srun", "-N4", "hostname").split()) == NAMES


def test_the_command_line_attaches_and_passes_exit_codes(lab: Lab) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "muster.cli.main", "lab", *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True)

    source = str(Path(requirements.__file__).parents[2])
    env = {**os.environ, "MUSTER_LAB_DIR": str(lab.plan.state_dir), "PYTHONPATH": source}
    assert {node["name"] for node in json.loads(command("status", "--json").stdout)["nodes"]} == NAMES
    assert f"export SLURM_CONF={lab.plan.slurm_conf}" in command("env").stdout
    assert command("exec", "--", "sh", "-c", "exit 7").returncode == 7
    inside = command("exec", "--node", "n2", "--", "sh", "-c", "hostname; exit 8")
    assert (inside.stdout.strip(), inside.returncode) == ("n2", 8)
    for stranger in ("n9", "labctl"):
        refused = command("kill-node", stranger)
        assert refused.returncode == 1 and stranger in refused.stderr and "n1, n2, n3, n4" in refused.stderr


@pytest.fixture
def place() -> Iterator[Path]:
    """A state directory below /tmp, which the nodes have privately; and no lab is left in it."""
    if reason := why_not():
        pytest.skip(f"no lab here: {reason}")
    directory = free_directory("/tmp/lab", free_directory("/run/muster-lab-test"))
    directory.mkdir()
    yield directory
    assert Lab.leftovers(directory) == []
    assert not directory.exists()


def test_down_leaves_nothing_even_of_a_busy_lab_it_has_no_record_of(place: Path, slurm_prefix: Path | None) -> None:
    two = Lab(2, "pgid", state_dir=place, slurm_prefix=slurm_prefix)
    two.up()
    client = two.popen(["srun", "-N2", "/bin/sleep", "1000"], stderr=subprocess.DEVNULL)
    try:
        eventually("the step runs", lambda: "/bin/sleep 1000" in commands_on(two, "n2").values())
        inits = [ProcessId(**one) for one in json.loads(two.plan.state_file.read_text())["machines"].values()]
        state.save(two.plan, {})
        assert any("slurmd" in line for line in Lab.leftovers(place))
    finally:
        Lab.for_cleanup(place).down()
    assert client.wait(timeout=120) == -signal.SIGKILL
    assert not any(init.alive() for init in inits)
    Lab(1, state_dir=place).down()


def test_an_up_that_fails_reports_the_reason_and_cleans_up(place: Path, slurm_prefix: Path | None) -> None:
    with pytest.raises(LabError, match="slurmctld"):
        Lab(1, "pgid", state_dir=place, slurm_prefix=slurm_prefix, extra_conf=["NoSuchSetting=1"]).up()


def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"no lab here: {reason}")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory, "thesis.tex").touch()
        with pytest.raises(LabError, match="not empty"):
            Lab(1, "pgid", state_dir=directory).up()
        Lab(1, state_dir=directory).down()
        assert Path(directory, "thesis.tex").exists()


# What the command line says where there is no lab


def test_without_root_packages_or_cgroups_one_line_has_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refusal() -> str:
        result = CliRunner().invoke(lab_command, ["up"], env={"MUSTER_LAB_DIR": "/run/muster-lab-none"})
        assert result.exit_code == 2 and result.stderr.count("\n") == 1
        return result.stderr

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in refusal()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroup, "FREEZER", tmp_path / "none")
    if not requirements.missing_packages():
        assert "--proctrack pgid" in refusal()
    monkeypatch.setattr(requirements, "SYSTEM_PATH", str(tmp_path))
    assert "apt-get install" in refusal() and "slurm-wlm" in refusal()


def test_down_and_status_where_nothing_is_up() -> None:
    env = {"MUSTER_LAB_DIR": "/run/muster-lab-none"}
    down = CliRunner().invoke(lab_command, ["down"], env=env)
    assert (down.exit_code, down.output) == (0, "no lab is up\n")
    status = CliRunner().invoke(lab_command, ["status"], env=env)
    assert status.exit_code == 1 and "no lab is up" in status.stderr
