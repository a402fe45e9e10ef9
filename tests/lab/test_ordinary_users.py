"""Everything that Muster does works for an ordinary user of a real Slurm; root only creates the lab."""

from __future__ import annotations

import json
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.lab.conftest import WAIT_ONCE, SlurmCommand
from tests.lab.logins import UserCommand

LAB = {"nodes": 3, "users": ["alice"]}

WEB = {"command": ["python", "-m", "http.server", "{http}"], "ports": {"http": "auto"}, "ready": {"http": "/"}}
SANDBOX = {"kind": "sandbox", "settings": {"workers_min": 1, "workers_max": 2, "preload": []}}
USE_SERVICES = """
import os, urllib.request
from muster.sandbox import Client
print("web", urllib.request.urlopen(os.environ["MUSTER_SERVICE_WEB"]).status)
with Client() as box:
    print("sandbox", box.execute("print(6 * 7)").stdout.strip())
"""
PLACE = """
import os, ray
from muster.placement import Model, Probe, Replicas
ray.init(log_to_driver=False, logging_level="error")
model, argv = Model("web", replicas=2, gpus_per_rank=0), ["-m", "http.server", "{port}"]
with Replicas("web", model, python_args=argv, probe=Probe("http", path="/")) as placed:
    print("placed", sorted(status.state for status in placed.status()), flush=True)
"""


@pytest.fixture
def alice(slurm: SlurmCommand) -> Iterator[UserCommand]:
    """Depends on `slurm`, which ends all jobs afterwards and looks for what is left on nodes."""
    yield UserCommand(slurm.lab, "alice")


def others_access(run: Path) -> dict[str, str]:
    """Return what others than the owner may do with files of the run."""
    found = {str(path.relative_to(run)): path.stat().st_mode for path in (run, *run.rglob("*"))}
    return {name: stat.filemode(mode) for name, mode in found.items() if mode & 0o077}


def test_accounts_exist_on_all_machines_of_the_lab_and_nowhere_else(alice: UserCommand) -> None:
    done = alice.lab.exec(["srun", "-N3", "sh", "-c", "id -un; pwd"], user="alice", capture_output=True, text=True)
    assert sorted(done.stdout.split()) == [str(alice.cwd.parent)] * 3 + ["alice"] * 3, done.stderr
    assert not any(line.startswith("alice:") for line in Path("/etc/passwd").read_text().splitlines())
    assert alice.on_node("n2", "id", "-un").stdout == "alice\n"


def test_a_run_belongs_to_its_user_and_is_private(alice: UserCommand) -> None:
    done = alice.run("--", "sh", "-c", "id -un; umask", nodes=3)
    assert (done.returncode, done.stdout) == (0, "alice\n0022\n"), done.stderr
    run, uid = alice.run_dir(), alice.lab.plan.user("alice").uid
    assert {path.stat().st_uid for path in (run, *run.rglob("*"))} == {uid}
    assert list(run.glob("slurm-*.out")) and others_access(run) == {}
    assert alice.ended_job(alice.status()["job_id"])["JobState"] == "COMPLETED"
    assert run.name in alice("runs").stdout and alice("status").returncode == 0


def test_a_gang_goes_on_with_a_spare_after_the_loss_of_a_node(alice: UserCommand) -> None:
    gang = ("--spares", "1", "--on-node-loss", "restart", "--procs-per-node", "2")
    process = alice.start(*alice.run_args(*gang, "--", "sh", "-c", WAIT_ONCE, nodes=2))
    alice.wait_for_driver("cycle 0")
    with alice.lost(alice.hosts()[1]):
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    assert "cycle 1\n" in out
    assert others_access(alice.run_dir()) == {}


def test_services_and_a_sandbox_work(alice: UserCommand) -> None:
    alice.write("driver.py", USE_SERVICES)
    job = {"nodes": 2, "ray": False, "command": ["python", "driver.py"], "services": {"web": WEB, "sandbox": SANDBOX}}
    alice.write("job.yaml", yaml.safe_dump({**job, "python": alice.python}))
    done = alice("run", "--file", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "web 200" and done.stdout.splitlines()[-1] == "sandbox 42"
    logs = [path.read_text() for path in alice.run_dir().glob("attempt-0/logs/services/sandbox/*.log")]
    assert len(logs) == 2 and all("isolation full" in log for log in logs), logs
    assert others_access(alice.run_dir()) == {}


def test_the_web_page_shows_the_user_s_runs(alice: UserCommand) -> None:
    assert alice.run("--", "true", nodes=1).returncode == 0
    ui = alice.start("ui", "--port", "0")
    try:
        assert ui.stdout is not None
        url = next(line.strip() for line in ui.stdout if "/enter?token=" in line)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(url, timeout=60)
        runs = opener.open(url.partition("/enter")[0] + "/api/runs", timeout=60).read().decode()
        assert alice.run_dir().name in runs
    finally:
        ui.terminate()
        ui.communicate(timeout=60)


def test_doctor_finds_nothing_wrong(alice: UserCommand) -> None:
    done = alice("doctor", "--json", "--no-ray", "--nodes", "3", "--python", alice.python)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert {check["check"] for check in report["checks"] if check["state"] != "pass"} <= {"containers", "ray"}
    assert list(report["nodes"]) == ["n1", "n2", "n3"]


@pytest.mark.ray
def test_programs_are_placed_in_ray(alice: UserCommand) -> None:
    alice.write("place.py", PLACE)
    limits = ("--cpus-per-node", "2", "--object-store-memory", "100M")
    done = alice.run(*limits, "--", "python", "place.py", nodes=2, ray=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "placed ['ready', 'ready']"
    assert others_access(alice.run_dir()) == {}
