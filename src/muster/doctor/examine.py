"""Run the checks that apply here: query Slurm, probe the nodes, and evaluate the facts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ClusterShell.NodeSet import NodeSet, NodeSetException

from muster import __version__
from muster.doctor import checks, probe_runner
from muster.doctor.check_result import CheckResult, Nodes, worst
from muster.doctor.node.shared_fs_probe import CANARY, ProbeTimeouts
from muster.doctor.slurm_checks import check_partition, check_slurm
from muster.doctor.slurm_facts import SlurmFacts, query_slurm
from muster.errors import Mistake
from muster.exit_codes import INFRASTRUCTURE_FAILED, NOT_STARTED
from muster.launch.plan import runs_dir
from muster.launch.target import Target, choose_python
from muster.ports.blocks import BLOCK_SIZE, LOCAL_BLOCK_SIZE
from muster.process import SpawnError
from muster.rundir import write_atomic
from muster.spec import JobSpec
from muster.views.hosts import folded

REPORT_FORMAT = 1


@dataclass(frozen=True)
class Report:
    """The result of `muster doctor`."""

    where: str
    """machine: this one only; job: nodes of a short job; allocation: nodes of the surrounding allocation."""
    results: Sequence[CheckResult]
    slurm: SlurmFacts | None
    nodes: Nodes
    complete: bool = True
    """False if requested checks could not be run at all."""

    @property
    def exit_code(self) -> int:
        if not self.complete:
            return INFRASTRUCTURE_FAILED
        return 1 if worst(self.results) == "fail" else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "format": REPORT_FORMAT,
            "muster": __version__,
            "result": worst(self.results),
            "complete": self.complete,
            "where": self.where,
            "checks": [asdict(result) for result in self.results],
            "slurm": self.slurm.as_json() if self.slurm else None,
            "nodes": dict(self.nodes),
        }


@dataclass(frozen=True)
class GatheredFacts:
    """The facts of the nodes, and the contents of the directory that they share."""

    nodes: Nodes
    file_names: Sequence[str] = ()
    """Files that this host sees in the directory after the probe."""
    problem: str = ""
    """Why the directory could not be created; empty if it was."""


class Examination:
    """One execution of all checks."""

    def __init__(self, spec: JobSpec, place: Target, cwd: Path) -> None:
        self.spec, self.place = spec, place
        self.where = _where(spec, place)
        self._runs_dir = runs_dir(spec, cwd)
        self._workdir = (cwd / Path(spec.workdir or ".").expanduser()).resolve()
        self._python = None if spec.container_image else choose_python(spec, os.environ, cwd)
        self._results: list[CheckResult] = []
        if not self._workdir.is_dir():
            raise Mistake(f"--workdir {spec.workdir}: no such directory")

    def report(self) -> Report:
        slurm = self._examine_slurm()
        complete, nodes = True, {}
        if self.where == "job" and worst(self._results) == "fail":
            self._results.append(CheckResult("nodes", "skip", "not probed: such a job cannot start"))
        else:
            gathered = self._examine_nodes()
            nodes, complete = dict(gathered.nodes), bool(gathered.nodes)
            examined = {host: facts for host, facts in nodes.items() if "system" in facts}
            if examined:
                self._check_nodes(examined, gathered, slurm)
        return Report(self.where, self._results, slurm, nodes, complete)

    def _examine_slurm(self) -> SlurmFacts | None:
        if self.place.kind == "local":
            skipped = [CheckResult(check, "skip", "not used: this machine only") for check in ("slurm", "partition")]
            self._results += skipped
            return None
        slurm = query_slurm()
        self._results.append(check_slurm(slurm))
        if self.where == "allocation":
            name = os.environ.get("SLURM_JOB_PARTITION", "?")
            self._results.append(CheckResult("partition", "pass", f"{name}: inside job {os.environ['SLURM_JOB_ID']}"))
        else:
            requested = probe_runner.requests(self.spec, os.environ)
            nodes, partition = self.spec.fewest_nodes, requested.get("partition")
            self._results.append(check_partition(slurm, partition, nodes, self.spec.time))
        return slurm

    def _examine_nodes(self) -> GatheredFacts:
        count = 1 if self.where == "machine" else self.place.nodes
        with _probe_directory(self._runs_dir, self.spec.env) as (directory, canary, problem):
            config = self._probe_config(count, directory, canary)
            argv = probe_runner.bash_argv(config, self.spec.setup or "", self.where != "machine")
            if self.where != "machine":
                argv = probe_runner.srun_argv(self.spec, count, self.where == "allocation", os.environ) + argv
            try:
                output = asyncio.run(probe_runner.launch(argv, str(self._workdir), directory))
            except SpawnError as error:
                output = probe_runner.ProbeOutput(NOT_STARTED, {}, str(error))
            file_names = os.listdir(directory) if directory and os.path.isdir(directory) else []
        nodes = {report["host"]: report for report in output.reports.values()}
        self._results.append(self._check_answers(nodes, output, count))
        return GatheredFacts(nodes, file_names, problem)

    def _check_answers(self, nodes: Nodes, output: probe_runner.ProbeOutput, count: int) -> CheckResult:
        if not nodes:
            reason = output.launcher_error or f"the launcher ended with code {output.code}"
            advice = "fix what the launcher reports, or run `muster doctor` inside an allocation (salloc)"
            return CheckResult("nodes", "fail", f"the probe could not be run: {reason}", advice)
        result = checks.check_answers(_expected(nodes, count), nodes, output.launcher_error)
        if result.state == "pass" and self.where == "machine":
            more = "; --nodes N checks N nodes" if self.place.kind == "sbatch" else ""
            return replace(result, what=f"this machine only ({folded(nodes)}){more}")
        return result

    def _probe_config(self, count: int, directory: str | None, canary: str) -> dict[str, Any]:
        """Return the configuration of the probe; see node/probe.py."""
        return {
            "nodes": count,
            "directory": directory,
            "canary": canary,
            "timeouts": asdict(ProbeTimeouts()),
            "runs_dir": str(self._runs_dir),
            "workdir": str(self._workdir),
            "python": self._python,
            "ray": self.spec.ray,
            "port_base": self.spec.port_base,
            "block_size": LOCAL_BLOCK_SIZE if self.place.kind == "local" else BLOCK_SIZE,
        }

    def _check_nodes(self, nodes: Nodes, gathered: GatheredFacts, slurm: SlurmFacts | None) -> None:
        path = str(self._runs_dir)
        if gathered.problem:
            advice = "set a writable directory with --runs-dir or MUSTER_RUNS_DIR"
            self._results.append(CheckResult("shared-directory", "fail", f"{path} {gathered.problem}", advice))
        else:
            self._results.append(checks.check_shared(path, nodes, gathered.file_names))
        self._results += [
            checks.check_visibility(nodes),
            checks.check_small_files(nodes),
            checks.check_claims(nodes),
            checks.check_clocks(nodes),
            checks.check_workdir(str(self._workdir), nodes),
            *self._check_python(nodes),
            *(check(nodes) for check in checks.PER_NODE),
            checks.check_containers(slurm is not None and slurm.pyxis, self.spec.container_image, nodes),
        ]

    def _check_python(self, nodes: Nodes) -> list[CheckResult]:
        if self._python is None:
            return [CheckResult(check, "skip", "the image's is used, not the nodes'") for check in ("python", "ray")]
        ray = checks.check_ray(nodes) if self.spec.ray else CheckResult("ray", "skip", "not requested (--no-ray)")
        return [checks.check_python(self._python, nodes), ray]


def _where(spec: JobSpec, place: Target) -> str:
    if place.kind == "sbatch":
        return "job" if spec.nodes_given else "machine"
    return "allocation" if place.kind == "allocation" else "machine"


def _expected(nodes: Nodes, count: int) -> list[str]:
    """Return the hosts that should have answered, as rank-N where the job's node list is unknown."""
    nodelist = next((facts["nodelist"] for facts in nodes.values() if facts.get("nodelist")), "")
    with contextlib.suppress(NodeSetException):
        hosts = list(NodeSet(nodelist))
        if count > 1 and len(hosts) == count and set(nodes) <= set(hosts):
            return hosts
    by_index = {facts["rank"]: host for host, facts in nodes.items()}
    return [by_index.get(node_index, f"rank-{node_index}") for node_index in range(count)]


@contextlib.contextmanager
def _probe_directory(parent: Path, env: dict[str, str]) -> Iterator[tuple[str | None, str, str]]:
    """Create a private directory with a canary in the runs directory; yield it, or why it could not be created.

    Afterwards it is removed, together with parent directories created for it.
    """
    directory, canary = parent / f".doctor-{secrets.token_hex(4)}", secrets.token_hex(8)
    created = [path for path in (parent, *parent.parents) if not path.exists()]
    problem = ""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        write_atomic(str(directory / "env.json"), json.dumps(env), mode=0o600)
        write_atomic(str(directory / CANARY), canary)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
    try:
        yield (None if problem else str(directory)), canary, problem
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for path in created:
            with contextlib.suppress(OSError):
                path.rmdir()
