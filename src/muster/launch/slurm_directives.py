"""What Slurm needs to know: the #SBATCH lines and the one srun. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.launch.job_script import Launcher
from muster.launch.requeue import NEXT_ATTEMPT
from muster.spec import JobSpec
from muster.spec.sbatch_options import as_argument

_PLAIN = re.compile(r"[\w@%+=:,./\[\]-]+")

# Inside a step (`srun --pty bash`) these would shrink or block a further step, or change how srun says what it says.
# SLURM_CLUSTERS would send this script's and the agents' commands to the clusters that the user submits to; without it
# they speak to the cluster that runs the job.
UNSET_STEP = r"""
unset ${!SLURM_STEP@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS \
  SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_DISTRIBUTION \
  SLURM_LABELIO SLURM_STDOUTMODE SLURM_STDERRMODE SLURM_SRUN_REDUCE_TASK_EXIT_MSG SLURM_CLUSTERS
""".strip("\n")

# Only in a job that Muster submitted: the record allows the agents to cancel the job. The id of one task may be that of
# its whole array.
OWN_JOB = r"""
own=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || own=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
printf '{"job_id": "%s", "restarts": %d}\n' "$own" "${SLURM_RESTART_COUNT:-0}" >"$attempt/slurm-job.json.tmp" &&
  mv "$attempt/slurm-job.json.tmp" "$attempt/slurm-job.json"
""".strip("\n")


def fewest_cpus(variable: str) -> str:
    """Without a number srun (22.05 and newer) would give a task one CPU. On unequal nodes: what every node has."""
    return f"\"$(tr ',' '\\n' <<<\"${variable}\" | sed 's/(.*//' | sort -n | head -n 1)\""


def defaults(spec: JobSpec, run_dir: str) -> dict[str, str | None]:
    """What Muster asks for unless told otherwise; all but no-kill can be removed with `--sbatch KEY=`."""
    chosen: dict[str, str | None] = {
        **_when_a_node_fails(spec),
        "open-mode": "append",
        "output": run_dir.replace("%", "%%") + ("/slurm-%j.out" if spec.array is None else "-%a/slurm-%A_%a.out"),
    }
    if spec.cpus_per_node is None:
        chosen["exclusive"] = None  # Ray takes whole nodes; with fewer CPUs asked for, nodes may be shared
    else:
        chosen["cpus-per-task"] = str(spec.cpus_per_node)
    return chosen


def _when_a_node_fails(spec: JobSpec) -> dict[str, str | None]:
    """A lost node must not end the job: the agents decide that. With the batch host, though, the job script is lost,
    and Slurm alone can begin again; a job that goes on without a lost node is not for it to end."""
    again: dict[str, str | None] = {"requeue": None} if spec.requeue_on else {}
    leave = "node-fail" in spec.requeue_on and not spec.spares and spec.on_node_loss == "fail"
    return again if leave else {"no-kill": None, **again}


def options(spec: JobSpec, run_dir: str, workdir: str) -> dict[str, str | None]:
    """Every option of the job by its long name: Muster's own, its defaults, then what the job asks for."""
    chosen: dict[str, str | None] = {
        "job-name": spec.name,
        "nodes": str(spec.nodes + spec.spares),
        "ntasks-per-node": "1",
        "chdir": workdir,
        **defaults(spec, run_dir),
    }
    chosen.update(spec.sbatch_requests())
    return {name: value for name, value in chosen.items() if value != ""}


def directives(spec: JobSpec, run_dir: str, workdir: str) -> list[str]:
    """The #SBATCH lines."""
    return directive_lines(options(spec, run_dir, workdir))


def directive_lines(options: Mapping[str, str | None]) -> list[str]:
    return [f"#SBATCH {_quoted(as_argument(*option))}" for option in options.items()]


def step(nodes: int, cpus_per_node: int | None, attempt: str = NEXT_ATTEMPT) -> Launcher:
    """The one srun, whatever the number of nodes."""
    cpus = str(cpus_per_node) if cpus_per_node is not None else fewest_cpus("SLURM_JOB_CPUS_PER_NODE")
    hosts = f'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n {nodes} >"$attempt/hosts"'
    words = ["srun", *step_options(nodes, cpus)]
    return Launcher("slurm", words, "SLURM_PROCID", "SLURMD_NODENAME", f"{UNSET_STEP}\n{hosts}", attempt)


def step_options(nodes: int, cpus: str) -> list[str]:
    return [
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        "--cpu-bind=none",
        "--distribution=block",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=none",
        "--export=ALL",
        "--mpi=none",
        "--job-name=muster",
    ]


def _quoted(word: str) -> str:
    """As sbatch reads its directives: double quotes, in which a backslash protects one character."""
    if _PLAIN.fullmatch(word):
        return word
    name, _, value = word.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'
