"""`muster run --container-image` works on a real Slurm with a real runtime; the image has no Muster and no Slurm."""

from __future__ import annotations

import contextlib
import json
import shutil
import site
import sys
from pathlib import Path

import pytest
from tests.image import MARK, PYTHON, build_image
from tests.lab.conftest import LAB_DIR, SlurmCommand
from tests.running import wait_for

from muster.agent.check_process import PROCESS_NAME
from muster.lab import Lab
from muster.launch.containers.render import Container, enter

LAB = {"nodes": 2}
RAY_INSIDE = "/opt/ray"
EXAMPLE = Path(__file__).parents[2] / "examples" / "hello_cluster.py"

pytestmark = pytest.mark.skipif(shutil.which("ch-run") is None, reason="charliecloud is not installed")

WHERE_AM_I = f"""
import importlib.util, os, shutil, socket, sys
print("marked", os.path.exists("{MARK}"))
print("slurm", [name for name in ("srun", "sbatch", "scontrol") if shutil.which(name)])
print("muster", importlib.util.find_spec("muster").origin.partition("muster-runs")[1])
print("python", sys.executable, "in", os.getcwd())
print("node", socket.gethostname(), "of", *map(os.environ.get, ("SLURM_JOB_NODELIST", "GREETING", "LOADED")))
open(os.environ["MUSTER_OUTPUT_DIR"] + "/written", "w")
sys.exit(7)
"""
HOLD = "trap 'echo saving; exit 9' TERM; echo ready; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def image(lab: Lab) -> Path:
    """On the filesystem that the nodes share, with the directories to mount on."""
    return build_image(LAB_DIR / "shared" / "image", (str(LAB_DIR / "shared"), RAY_INSIDE))


def contained(image: Path, *args: str, ray: bool = False) -> list[str]:
    """The arguments of a run on two nodes whose Python is the image's."""
    kind = ["run", "--nodes", "2", *([] if ray else ["--no-ray"]), "--container-image", str(image)]
    # Run directories are in the directory of the test's own: one mount for it, and for the run's.
    return [*kind, "--container-mounts", str(LAB_DIR / "shared"), *args]


def test_everything_runs_inside_and_needs_nothing_there_but_python(slurm: SlurmCommand, image: Path) -> None:
    slurm.env["VIRTUAL_ENV"] = sys.prefix
    given = ["--env", "GREETING=hi", "--setup", "export LOADED='by setup'"]
    done = slurm(*contained(image, *given, "--", "python3", "-c", WHERE_AM_I))
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == [
        "marked True",
        "slurm []",
        "muster muster-runs",  # the library that travels with the run, and no other
        f"python {PYTHON} in {slurm.cwd}",
        "node n1 of n[1-2] hi by setup",
    ]
    assert (slurm.run_dir() / "output" / "written").exists()
    job = slurm.ended_job(slurm.status()["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "7:0")


def test_scancel_reaches_the_driver_inside_and_another_step_can_enter(slurm: SlurmCommand, image: Path) -> None:
    process = slurm.start(*contained(image, "--", "sh", "-c", HOLD))
    run = slurm.wait_for_driver("ready")
    job_id = slurm.status()["job_id"]
    record = json.loads((run / "job.json").read_text())["container"]
    agent = json.loads((run / "attempt-0" / "nodes" / "0001.json").read_text())["pid"]
    entry = enter(Container.from_record(record), run.name, job_id, attempt=0, node_index=1, agent_pid=agent)
    step = ["srun", f"--jobid={job_id}", "--overlap", "--nodelist=n2", "--nodes=1", "--ntasks=1", *entry.srun_flags]
    entered = slurm.slurm(*step, *entry.prefix, "sh", "-c", f"ls {MARK}; cat /proc/{agent}/comm")
    assert entered.stdout.split() == [MARK, "python3"], entered.stderr
    shell = slurm("exec", run.name, "--node", "n2", "--", "sh", "-c", f"ls {MARK}; echo $MUSTER_RUN_ID")
    assert shell.stdout.split() == [MARK, run.name], shell.stderr
    # The guardian is the task: Slurm signals it. The heartbeat of the prelude, which it was, ends within seconds.
    tasks = [("muster-guardian", True), ("slurmstepd", True)]
    wait_for("the guardian as the task, and the agent below it", lambda: sorted(agents_of(slurm, "n2")) == tasks)
    slurm.slurm("scancel", job_id)
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 9
    assert "saving" in out


def agents_of(slurm: SlurmCommand, node: str) -> list[tuple[str, bool]]:
    """Of each agent on the node: its parent's name, and whether its root is the image's."""
    agents = []
    for pid in slurm.lab.processes(node):
        with contextlib.suppress(OSError):  # it ended while we looked
            here = Path(f"/proc/{pid}")
            parent = here.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            checks = here.joinpath("comm").read_bytes().strip() == PROCESS_NAME  # forked by the agent
            if b"agent.pyz" in here.joinpath("cmdline").read_bytes() and not checks:
                agents.append((Path(f"/proc/{parent}/comm").read_text().strip(), Path(f"{here}/root{MARK}").exists()))
    return agents


def test_an_image_that_the_nodes_cannot_see_is_named(slurm: SlurmCommand) -> None:
    done = slurm(*contained(Path("/run/no-such-image"), "--", "true"))
    assert done.returncode == 125
    assert "cannot see the container image /run/no-such-image" in done.stderr
    assert any(f"{node}: cannot see" in done.stderr for node in ("n1", "n2"))


def test_a_runtime_that_fails_is_quoted(slurm: SlurmCommand, image: Path) -> None:
    done = slurm(*contained(image, "--container-workdir", "/no/such/dir", "--", "true"))
    assert done.returncode == 125
    assert "can't cd to /no/such/dir" in done.stderr


@pytest.mark.slow
def test_a_slurm_without_pyxis_is_named(slurm: SlurmCommand) -> None:
    done = slurm(*contained(Path("ubuntu"), "--container-runtime", "pyxis", "--", "true"))
    assert done.returncode == 125
    assert "Slurm has no pyxis here" in done.stderr


def test_many_nodes_that_pull_an_image_are_warned_about(slurm: SlurmCommand) -> None:
    many = ["run", "--nodes", "8", "--container-runtime", "pyxis", "--container-image", "ubuntu"]
    done = slurm(*many, "--dry-run", "--", "true")
    assert done.returncode == 0
    assert "muster: warning: --container-image ubuntu: each of the 8 nodes would pull it" in done.stderr


def test_a_mistyped_image_is_refused_before_the_queue(slurm: SlurmCommand) -> None:
    done = slurm(*contained(Path("/usr/no-such-image"), "--", "true"))
    assert done.returncode == 2
    assert "--container-image /usr/no-such-image: no such file or directory" in done.stderr
    assert not slurm.run_dirs()


@pytest.mark.slow
@pytest.mark.ray
def test_ray_comes_up_inside_from_the_images_python_and_a_mounted_ray(slurm: SlurmCommand, image: Path) -> None:
    packages = next(path for path in site.getsitepackages() if (Path(path) / "ray").is_dir())
    mounts = f"{LAB_DIR}/shared,{packages}:{RAY_INSIDE}"
    shutil.copy(EXAMPLE, slurm.cwd)
    args = ["--container-mounts", mounts, "--env", f"PYTHONPATH={RAY_INSIDE}", "--", "python3", EXAMPLE.name]
    done = slurm(*contained(image, *args, ray=True), timeout=180)
    assert done.returncode == 0, done.stderr
    assert "2 alive nodes in run" in done.stdout
