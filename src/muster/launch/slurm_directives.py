"""Render the #SBATCH lines and the srun command of a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.launch.job_script import Launcher
from muster.launch.requeue import NEXT_ATTEMPT, may_be_requeued
from muster.launch.templates import render_template
from muster.rundir.hosts import STEP_NODES_VARIABLE
from muster.slurm.step_variables import unset_arguments
from muster.spec import JobSpec
from muster.spec.sbatch_options import as_argument

_PLAIN = re.compile(r"[\w@%+=:,./\[\]-]+")

_BATCH = """
begin comment dependency error export export-file get-user-env hold input kill-on-invalid-dep no-requeue open-mode
output requeue signal time time-min
"""
BATCH_OPTIONS = frozenset(_BATCH.split())  # about when and how a batch job runs, not about its nodes

# A lost or failed task must not end the other tasks, and tasks need neither stdin nor MPI.
INDEPENDENT_TASKS = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--input=none", "--export=ALL", "--mpi=none")


def fewest_cpus(variable: str) -> str:
    """Return shell code for the smallest number of CPUs on any node: srun (22.05 and newer) would default to one."""
    return f"\"$(tr ',' '\\n' <<<\"${variable}\" | sed 's/(.*//' | sort -n | head -n 1)\""


def defaults(spec: JobSpec, run_dir: str) -> dict[str, str | None]:
    """Return Muster's default options; `--sbatch KEY=` removes any of them but no-kill."""
    chosen: dict[str, str | None] = {
        **_node_failure_options(spec),
        "open-mode": "append",
        "output": run_dir.replace("%", "%%") + ("/slurm-%j.out" if spec.array is None else "-%a/slurm-%A_%a.out"),
    }
    if spec.cpus_per_node is None:
        chosen["exclusive"] = None  # Ray uses whole nodes; jobs with --cpus-per-node may share them
    else:
        chosen["cpus-per-task"] = str(spec.cpus_per_node)
    return chosen


def _node_failure_options(spec: JobSpec) -> dict[str, str | None]:
    """Keep the job alive when a node is lost, because the agents decide its fate.

    Exception: if node-fail is only a reason to requeue, Slurm ends the job, since only Slurm can requeue a job whose
    batch host is lost. Without a request, a job must not run its driver a second time.
    """
    requeue: dict[str, str | None] = {"requeue" if may_be_requeued(spec) else "no-requeue": None}
    slurm_decides = "node-fail" in spec.requeue_on and not spec.has_surplus and spec.on_node_loss == "fail"
    return requeue if slurm_decides else {"no-kill": None, **requeue}


def options(spec: JobSpec, run_dir: str, workdir: str) -> dict[str, str | None]:
    """Return all sbatch options by long name: those that Muster sets, its defaults, then the job's."""
    chosen: dict[str, str | None] = {
        "job-name": spec.name,
        **_size_options(spec),
        "chdir": workdir,
        **defaults(spec, run_dir),
    }
    chosen.update(spec.sbatch_requests())
    return {name: value for name, value in chosen.items() if value != ""}


def _size_options(spec: JobSpec) -> dict[str, str | None]:
    """Return the options for the number of nodes.

    A range has no number of tasks per node: sbatch (22.05) would compute the tasks for the fewest nodes, and Slurm
    would never allocate more nodes than tasks.
    """
    fewest, most = spec.fewest_nodes + spec.spares, spec.nodes + spec.spares
    return {"nodes": str(most), "ntasks-per-node": "1"} if fewest == most else {"nodes": f"{fewest}-{most}"}


def directives(spec: JobSpec, run_dir: str, workdir: str) -> list[str]:
    """Return the #SBATCH lines."""
    return directive_lines(options(spec, run_dir, workdir))


def directive_lines(options: Mapping[str, str | None]) -> list[str]:
    return [f"#SBATCH {_quoted(as_argument(*option))}" for option in options.items()]


def step(nodes: int | None, cpus_per_node: int | None, attempt: str = NEXT_ATTEMPT) -> Launcher:
    """Return the launcher: one srun for all nodes. `nodes`: their number; None: all that Slurm has allocated."""
    count: int | str = "$SLURM_JOB_NUM_NODES" if nodes is None else nodes
    cpus = str(cpus_per_node) if cpus_per_node is not None else fewest_cpus("SLURM_JOB_CPUS_PER_NODE")
    hosts = f'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n {count} >"$attempt/hosts"'
    known = [f"export {STEP_NODES_VARIABLE}={count}"] if nodes is None else []
    prepare = "\n".join([unset_step(), hosts, *known])
    words = ["srun", *step_options(count, cpus)]
    return Launcher("slurm", words, "SLURM_PROCID", "SLURMD_NODENAME", prepare, attempt)


def unset_step() -> str:
    """Return shell code that removes the variables of a surrounding step."""
    return render_template("unset_step.sh", STEP_VARIABLES=unset_arguments())


def step_options(nodes: int | str, cpus: str) -> list[str]:
    """Return srun's options for one task on each node, in the order of the job's node list.

    With one task per node `block` and `cyclic` are the same, but newer releases (26.05) number the tasks of a `block`
    distribution by the nodes' places in Slurm's topology.
    """
    return [
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        "--cpu-bind=none",
        "--distribution=cyclic",
        "--overlap",
        *INDEPENDENT_TASKS,
        "--job-name=muster",
    ]


def _quoted(word: str) -> str:
    """Quote a word for sbatch directives: double quotes, in which a backslash escapes one character."""
    if _PLAIN.fullmatch(word):
        return word
    name, _, value = word.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'
