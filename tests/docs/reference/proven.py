"""The page of what is proven: claims with their tests, and where each test file runs, as the tests say it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.docs.reference.markdown import code, heading, table

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
INSTALLED = "installed"
WHOLE_RUNS = ("chaos", "filesystems", "lab", "local", "sim")
MARKS = ("slow", "soak", "filesystems", "interpreters", "containers")
TARGETS = {
    "slow": "make test-all",
    "soak": "make chaos",
    "filesystems": "make test-filesystems",
    "interpreters": "make test-interpreters",
    "containers": "make test-containers",
}


@dataclass(frozen=True)
class ProvenClaim:
    """What Muster promises, the test files that provoke the problem, and what they do not show."""

    claim: str
    tests: tuple[str, ...]
    not_shown: str = ""


CLAIMS = (
    ProvenClaim(
        "Jobs that share a node do not share a port",
        ("lab/test_resources", "ports/test_blocks", "local/test_ports", "lab/test_faults"),
        "hundreds of nodes; NeMo-RL beside them",
    ),
    ProvenClaim(
        "The driver starts when all nodes are ready, in any order of events; missing nodes are named",
        ("local/test_failures", "lifecycle/test_state_machine", "sim/test_simulate"),
    ),
    ProvenClaim(
        "A node that fails a built-in check, if only under load, gets no rank; a check that hangs holds up nothing",
        ("local/test_node_checks", "lab/test_bad_nodes", "agent/test_check_process"),
        "GPUs: the output of their tools is from public reports or written after its format",
    ),
    ProvenClaim(
        "Nodes find the leader on several networks, with a dead interface, with 127.0.1.1 and with only IPv6",
        ("lab/test_addresses", "lab/test_ipv6"),
        "InfiniBand",
    ),
    ProvenClaim(
        "One step, and a constant number of queries to slurmctld, for any number of nodes",
        ("lab/test_scale", "lab/test_run"),
        "more than 64 nodes",
    ),
    ProvenClaim(
        "Two users' Ray jobs run on one node; `/tmp/ray` of another user has no effect",
        ("lab/test_resources", "agent/ray/test_settings"),
    ),
    ProvenClaim(
        "Limits of open files, processes and threads are raised or reported",
        ("agent/health/test_limits", "agent/ray/test_cluster"),
        "a real limit of processes",
    ),
    ProvenClaim("The end of a job does not stop another Ray on the node", ("lab/test_resources",)),
    ProvenClaim(
        "Ray gets the CPUs, GPUs and memory of the step; a mismatch names the node",
        ("lab/test_resources", "agent/ray/test_resources", "lab/test_run"),
        "real GPUs, which are declared to Slurm and Ray; `nvidia-smi` and NVLink domains only by printed text",
    ),
    ProvenClaim(
        "Runs survive a full disk, a vanished run directory, hanging and failing filesystems, and missing hard links",
        ("local/test_failures", "lab/test_fault_phases", "filesystems/test_local_runs"),
        "NFS, Lustre, GPFS and CephFS; outages of a minute have no complete run",
    ),
    ProvenClaim(
        "Logs are kept, also over requeues and restarts",
        ("local/test_ray", "agent/ray/test_session_logs", "lab/test_requeue", "lab/test_run"),
    ),
    ProvenClaim(
        "Jobs run in containers, also services, signals and a killed leader",
        ("lab/test_container", "lab/test_apptainer", "local/test_container", "launch/containers/test_render"),
        "pyxis is compared as text only; setuid Apptainer, SIF images",
    ),
    ProvenClaim(
        "A missing interpreter, module or environment fails the run at once", ("local/test_failures", "local/test_run")
    ),
    ProvenClaim(
        "Ray's settings fit the size of the cluster",
        ("agent/ray/test_tuning",),
        "hundreds of nodes that register at once",
    ),
    ProvenClaim("The driver joins only its cluster", ("agent/ray/test_cluster", "agent/test_environment")),
    ProvenClaim(
        "A bad node ends the run within seconds, or is replaced by a spare",
        ("lab/test_faults", "lab/test_spares", "local/test_spares"),
    ),
    ProvenClaim(
        "Another node leads after the loss of the leader, and there are never two drivers",
        ("lab/test_succession", "local/test_succession", "sim/test_simulate", "election/test_follower"),
    ),
    ProvenClaim(
        "Drivers, actors and placement groups survive the end of Ray's control service",
        ("local/test_gcs_recovery", "agent/ray/test_gcs_recovery"),
        "Ray releases before 2.60",
    ),
    ProvenClaim("A finished job leaves no process and no allocation", ("lab/test_run", "lab/test_release")),
    ProvenClaim(
        "Ray's dashboard is reachable, only with the token",
        ("local/test_dashboard", "agent/ray/test_cluster"),
        "ssh into a node",
    ),
    ProvenClaim("A retried start has fresh state", ("local/test_ray",)),
    ProvenClaim(
        "Placed programs end with their owner, keep their GPUs and ports, and are restarted",
        ("placement/test_survival", "placement/runtime/test_replicas", "local/test_placement", "lab/test_placement"),
        "inference engines and real GPUs",
    ),
    ProvenClaim(
        "The driver waits for its services",
        ("local/test_services", "lab/test_services", "lifecycle/test_services"),
        "services on hundreds of nodes",
    ),
    ProvenClaim(
        "Without the token there is no access to Ray, the agents or the web page",
        ("local/test_ray", "local/test_dashboard", "agent/control/test_channel", "web/test_auth"),
    ),
    ProvenClaim(
        "A second user of the same nodes cannot read or use a run",
        ("lab/test_hostile_user", "lab/test_ordinary_users"),
        "binding all ports of a host; running programs at the sandbox's loopback endpoint, which needs no token",
    ),
    ProvenClaim(
        "Programs in the sandbox do not escape, exceed limits or affect the next program",
        ("sandbox/test_escape", "sandbox/test_limits"),
        "flaws of the kernel",
    ),
    ProvenClaim(
        "Jobs are requeued after a time limit, a preemption or a lost node, and resume",
        ("lab/test_requeue", "local/test_resume"),
        "preemption with GraceTime; `JobRequeue=0`",
    ),
    ProvenClaim(
        "Gangs have torchrun's environment, restart as a whole, and hung ranks are found",
        ("lab/test_gang", "local/test_gang", "agent/gang/test_gang_environment"),
        "NCCL, GPUs, JAX",
    ),
    ProvenClaim(
        "torchrun jobs replace lost nodes and survive the loss of the coordinator",
        ("lab/test_torchrun", "torch/test_failover", "torch/test_torchrun"),
        "NCCL, GPUs",
    ),
    ProvenClaim(
        "The variables of ray.sub have their meaning or are reported",
        ("spec/test_ray_sub", "lab/test_groups"),
        "NeMo-RL and its images",
    ),
)


def slurm_suites() -> set[str]:
    """Return the files of the lab that `make test-slurm` runs with each release."""
    suites = re.findall(r'^    "[^:"]+:([\w ]+)"$', (ROOT / ".ci" / "test-slurm").read_text(), re.MULTILINE)
    return {f"lab/test_{name}" for suite in suites for name in suite.split()}


def _makefile(pattern: str) -> str:
    found = re.search(pattern, (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None, pattern
    return found[1]


@cache
def environments(test: str) -> dict[str, str]:
    """Return where a test file runs: Slurm, Ray and other environments, from its place, its marks and the Makefile."""
    text = (TESTS / f"{test}.py").read_text(encoding="utf-8")
    on_lab = test.startswith("lab/") and "slurm" in text
    releases = _makefile(r"^SLURM_RELEASES \?= (.*)$").split()
    slurm = ", ".join(releases) if test in slurm_suites() else INSTALLED if on_lab else ""
    ray = ""
    if "mark.ray" in text:
        newest = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        oldest = _makefile(r"^OLDEST_RAY := (.*)$") if f"tests/{test}.py" in _makefile(r"-m ray (tests/.*)$") else ""
        ray = ", ".join(filter(None, (oldest, newest[1] if newest else "")))
    others = [
        f"only `{TARGETS[mark]}`"
        for mark in MARKS
        if re.search(rf"^pytestmark = (\[\s*)?pytest.mark.{mark}\b", text, re.M)
    ]
    if test.removeprefix("lab/test_") in _makefile(r"^ON_GLUSTERFS := (.*)$").split() and on_lab:
        others.append("GlusterFS (`make test-filesystems`)")
    if test.startswith("filesystems/"):
        others.append("FUSE filesystem with faults")
    if "ordinary_users" in test or "hostile_user" in test:
        others.append("ordinary users")
    return {"Slurm": slurm, "Ray": ray, "further": ", ".join(others)}


def summary(test: Path) -> str:
    """Return the first sentence of a test file's docstring."""
    text = ast.get_docstring(ast.parse(test.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def test_files() -> list[str]:
    """Return all test files, without suffix, below tests."""
    return sorted(str(path.relative_to(TESTS).with_suffix("")) for path in TESTS.rglob("test_*.py"))


test_files.__test__ = False  # type: ignore[attr-defined]


def _named(where: dict[str, dict[str, str]]) -> str:
    """Return the further environments, each with the test file that it belongs to."""
    return "; ".join(f"{code(test)}: {place['further']}" for test, place in where.items() if place["further"])


def _claims() -> str:
    rows = []
    for one in CLAIMS:
        where = {test: environments(test) for test in one.tests}
        joined = [
            max((place[key] for place in where.values()), key=len) if key != "further" else _named(where)
            for key in ("Slurm", "Ray", "further")
        ]
        rows.append([one.claim, ", ".join(code(test) for test in one.tests), *joined, one.not_shown])
    return table(("claim", "tests", "Slurm", "Ray", "further environments", "not shown"), rows)


def _files() -> str:
    whole = [test for test in test_files() if test.partition("/")[0] in WHOLE_RUNS]
    return table(("test file", "what it shows"), [[code(test), summary(TESTS / f"{test}.py")] for test in whole])


def page() -> str:
    """Return the text of the page."""
    introduction = (
        "Each claim names the test files that provoke the problem, and the environments in which they run, as the "
        "Makefile and the marks of the tests define them. All tests run on one machine without GPUs. "
        "[Limits](../explanation/limits.md) explains what they cannot show."
    )
    releases = (
        f"`{INSTALLED}` is the Slurm of the distribution, 22.05 on Debian 12. `make test-interpreters` runs nodes on "
        "each Python from 3.9 to 3.14 that the machine has."
    )
    return (
        f"{heading('What is proven', introduction)}\n## Claims\n\n{releases}\n\n{_claims()}\n\n"
        f"## Tests of whole runs\n\n{_files()}\n"
    )
