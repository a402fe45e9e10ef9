"""`muster run --container-image` works on a real Slurm with Apptainer, for root and for an ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.apptainer import ARGUMENTS, search_path
from tests.image import MARK, PYTHON, build_image
from tests.lab.conftest import LAB_DIR, REPOSITORY, SlurmCommand
from tests.running import wait_for

from muster.lab import Lab
from muster.lab.process import all_pids
from muster.process.proctree import read_process

pytestmark = [
    pytest.mark.containers,
    pytest.mark.skipif(search_path() is None, reason="apptainer is not installed"),
]

LAB = {"nodes": 3}
ORDINARY = pwd.getpwnam("nobody")
RAY_INSIDE = "/opt/ray"
EXAMPLE = REPOSITORY / "examples" / "hello_cluster.py"
WHERE_AM_I = f"""
import importlib.util, os, shutil, socket, sys
print("marked", os.path.exists("{MARK}"), "as", os.getuid())
print("slurm", [name for name in ("srun", "sbatch", "scontrol") if shutil.which(name)])
print("muster", importlib.util.find_spec("muster").origin.partition("muster-runs")[1])
print("python", sys.executable, "in", os.getcwd())
print("node", socket.gethostname(), "of", *map(os.environ.get, ("SLURM_JOB_NODELIST", "GREETING", "LOADED")))
open(os.environ["MUSTER_OUTPUT_DIR"] + "/written", "w")
sys.exit(7)
"""
# A driver that leaves a process behind it, and waits in its first cycle.
HOLD = "trap 'echo saving; exit 9' TERM; (sleep 1000 &); echo cycle $MUSTER_CYCLE; [ $MUSTER_CYCLE = 0 ] || exit 0;"
HOLD += " while :; do sleep 0.1; done"
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.path.exists(sys.argv[2])).encode())
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
ASK = """
import os, urllib.request
from muster.sandbox import Client
urls = os.environ["MUSTER_SERVICE_WEB_URLS"].split(",")
print("service", *[urllib.request.urlopen(url).read().decode() for url in urls])
with Client() as box:
    box.execute("x = 6", session="s")
    print("session", box.execute("x * 7", session="s").stdout.strip())
    print("program", box.execute("print(sum(range(10)))").stdout.strip())
"""


class ContainedCommand(SlurmCommand):
    """`muster` of a user, with Apptainer on its PATH."""

    def __init__(self, slurm: SlurmCommand, image: Path, user: pwd.struct_passwd | None) -> None:
        env = {**slurm.env, "PATH": f"{slurm.env['PATH']}{os.pathsep}{search_path()}", "HOME": str(slurm.cwd)}
        super().__init__(slurm.cwd, slurm.python, env, slurm.lab)
        self.image, self.user = image, user
        if user is not None:
            os.chown(self.cwd, user.pw_uid, user.pw_gid)
            self.cli = _python_for_all()
            self.env["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "src"), sysconfig.get_path("purelib")])
            self.env["USER"] = self.env["LOGNAME"] = user.pw_name

    def start(self, *args: str, **popen: Any) -> subprocess.Popen[str]:
        if self.user is not None:
            popen = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [], **popen}
        return super().start(*args, **popen)

    def options(self, *args: str, nodes: int = 2, ray: bool = False, arguments: str = ARGUMENTS) -> list[str]:
        """Return the options of a run whose Python is the image's."""
        kind = ["--nodes", str(nodes), *([] if ray else ["--no-ray"])]
        image = [
            "--container-image",
            str(self.image),
            "--container-runtime",
            "apptainer",
            "--container-args",
            arguments,
        ]
        return [*kind, *image, *args]


def _python_for_all() -> str:
    """Return a Python of this version that every user can run: the tests' own may be below root's home directory."""
    check = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    for program in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}"):
        try:
            done = subprocess.run([program, "-c", check], user=ORDINARY.pw_uid, capture_output=True, cwd="/")
        except OSError:
            continue
        if done.returncode == 0:
            return program
    pytest.skip("no Python of the tests' version that an ordinary user can run")


@pytest.fixture(scope="module")
def image(lab: Lab) -> Path:
    return build_image(LAB_DIR / "shared" / "image", (str(LAB_DIR / "shared"), RAY_INSIDE))


@pytest.fixture(params=["root", "user"])
def contained(request: pytest.FixtureRequest, slurm: SlurmCommand, image: Path) -> ContainedCommand:
    return ContainedCommand(slurm, image, ORDINARY if request.param == "user" else None)


@pytest.fixture
def of_user(slurm: SlurmCommand, image: Path) -> ContainedCommand:
    return ContainedCommand(slurm, image, ORDINARY)


def test_everything_runs_inside_and_needs_nothing_there_but_python(contained: ContainedCommand) -> None:
    contained.env["VIRTUAL_ENV"] = sys.prefix
    given = ["--env", "GREETING=hi", "--setup", "export LOADED='by setup'"]
    done = contained("run", *contained.options(*given, "--", "python3", "-c", WHERE_AM_I))
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == [
        f"marked True as {0 if contained.user is None else contained.user.pw_uid}",
        "slurm []",
        "muster muster-runs",  # the library that travels with the run, and no other
        f"python {PYTHON} in {contained.cwd}",
        "node n1 of n[1-2] hi by setup",
    ]
    assert (contained.run_dir() / "output" / "written").exists()
    job = contained.ended_job(contained.status()["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "7:0")


@pytest.mark.parametrize("pids", ["", " --pid", " --pid --no-init"], ids=["host pids", "own pids", "agent below init"])
def test_scancel_reaches_the_driver_inside(of_user: ContainedCommand, pids: str) -> None:
    options = of_user.options("--", "sh", "-c", HOLD, arguments=ARGUMENTS + pids)
    process = of_user.start("run", *options)
    run = of_user.wait_for_driver("cycle 0")
    job_id = of_user.status()["job_id"]
    shell = of_user("exec", run.name, "--node", "n2", "--", "sh", "-c", f"ls {MARK}; echo $MUSTER_RUN_ID")
    assert shell.stdout.split() == [MARK, run.name], shell.stderr
    of_user.slurm("scancel", job_id)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 9, err
    assert "saving" in out


@pytest.mark.parametrize("pids", ["", " --pid", " --pid --no-init"], ids=["host pids", "own pids", "agent below init"])
def test_a_killed_leader_is_certified_gone_and_a_spare_replaces_it(of_user: ContainedCommand, pids: str) -> None:
    """The guardian sees its children in a pid namespace of the container as it does without one."""
    options = ("--spares", "1", "--on-node-loss", "restart", "--", "sh", "-c", HOLD)
    process = of_user.start("run", *of_user.options(*options, arguments=ARGUMENTS + pids))
    run = of_user.wait_for_driver("cycle 0")
    os.kill(agent_below_guardian(of_user, "n1"), signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "cycle 1" in out
    assert json.loads((run / "attempt-0" / "lead-0-gone.json").read_text())["host"] == "n1"
    assert of_user.status()["cycles"][-1]["members"] == ["n2", "n3"]
    wait_for("no process of the image", lambda: not [n for n in ("n1", "n2", "n3") if inside(of_user, n)])


def agent_below_guardian(command: ContainedCommand, node: str) -> int:
    """Return the pid, on this machine, of the node's agent."""
    below = [pid for pid in inside(command, node) if _name(_parent(pid)) == "muster-guardian"]
    (agent,) = [pid for pid in below if _name(pid).startswith("python")]  # the other is the heartbeat of the prelude
    return agent


def inside(command: ContainedCommand, node: str) -> list[int]:
    """Return the node's processes whose root is the image's, in whatever pid namespace."""
    name = os.readlink(f"/proc/{command.lab.processes(node)[0]}/ns/uts")
    return [pid for pid in all_pids() if _link(pid, "ns/uts") == name and os.path.exists(f"/proc/{pid}/root{MARK}")]


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""  # it has ended


def _parent(pid: int) -> int:
    found = read_process(pid)
    return found[0] if found else 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has ended


def test_a_killed_runtime_is_a_lost_node_and_nothing_of_it_is_left(of_user: ContainedCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--", "sh", "-c", HOLD)
    process = of_user.start("run", *of_user.options(*options))
    of_user.wait_for_driver("cycle 0")
    runtime = _parent(_parent(agent_below_guardian(of_user, "n2")))
    assert _name(runtime) == "starter"
    os.kill(runtime, signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "cycle 1" in out
    assert of_user.status()["cycles"][-1]["members"] == ["n1", "n3"]


def test_services_and_a_sandbox_run_inside(contained: ContainedCommand) -> None:
    """A sandbox of root in a user namespace of its own has no other user for its programs, and is refused."""
    (contained.cwd / "server.py").write_text(SERVER)
    (contained.cwd / "ask.py").write_text(ASK)
    web = {"command": ["python3", "server.py", "{http}", MARK], "ports": {"http": "auto"}, "ready": {"http": "/"}}
    sandbox = {"kind": "sandbox", "settings": {"workers_min": 1, "workers_max": 2, "preload": []}}
    (contained.cwd / "job.yaml").write_text(yaml.safe_dump({"services": {"web": web, "sandbox": sandbox}}))
    options = contained.options("--", "python3", "ask.py")
    done = contained("run", "--file", "job.yaml", *options)
    if contained.user is None:
        assert done.returncode == 125
        assert "this container has no user but root: run the job as an ordinary user" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["service True True", "session 42", "program 45"]


def test_a_runtime_that_fails_is_quoted(of_user: ContainedCommand) -> None:
    done = of_user("run", *of_user.options("--container-workdir", "/no/such/dir", "--", "true"))
    assert done.returncode == 125
    assert "/no/such/dir" in done.stderr


@pytest.mark.ray
def test_ray_comes_up_inside_from_the_images_python_and_a_mounted_ray(of_user: ContainedCommand) -> None:
    packages = next(path for path in site.getsitepackages() if (Path(path) / "ray").is_dir())
    shutil.copy(EXAMPLE, of_user.cwd)
    given = ["--container-mounts", f"{packages}:{RAY_INSIDE}", "--env", f"PYTHONPATH={RAY_INSIDE}"]
    done = of_user("run", *of_user.options(*given, "--", "python3", EXAMPLE.name, ray=True), timeout=400)
    assert done.returncode == 0, done.stderr
    assert "2 alive nodes in run" in done.stdout
