"""Render a job with groups as a Slurm hetjob: one block of #SBATCH lines per group, one srun for all. Pure.

Slurm numbers the tasks of such a step by group, so that node 0 is the first node of the first group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.launch import slurm_directives
from muster.launch.job_script import Launcher
from muster.launch.requeue import NEXT_ATTEMPT
from muster.spec import JobSpec
from muster.spec.fields.groups import Group, resolved

_WHOLE_JOB = "bb bbf chdir deadline job-name mail-type mail-user nice priority profile propagate wckey"
# Options of the whole job, which Slurm takes from the first block. All others describe the nodes of a group.
_JOB_OPTIONS = slurm_directives.BATCH_OPTIONS | frozenset(_WHOLE_JOB.split())


def options(spec: JobSpec, run_dir: str, workdir: str) -> list[dict[str, str | None]]:
    """Return the options of each group's block; the first block has those of the whole job."""
    blocks = [slurm_directives.options(_job_of_group(spec, group), run_dir, workdir) for group in resolved(spec)]
    return [
        block if number == 0 else {name: value for name, value in block.items() if name not in _JOB_OPTIONS}
        for number, block in enumerate(blocks)
    ]


def _job_of_group(spec: JobSpec, group: Group) -> JobSpec:
    """Return the job with only the nodes of this group."""
    return spec.model_copy(update={**group.model_dump(exclude={"name"}), "name": spec.name, "groups": []})


def directives(spec: JobSpec, run_dir: str, workdir: str) -> list[str]:
    """Return the #SBATCH lines, with the groups' blocks separated."""
    lines: list[str] = []
    for block in options(spec, run_dir, workdir):
        lines += ["#SBATCH hetjob"] if lines else []
        lines += slurm_directives.directive_lines(block)
    return lines


def step(groups: Sequence[Group], attempt: str = NEXT_ATTEMPT) -> Launcher:
    """Return the launcher: one srun for all groups."""
    if len(groups) == 1:  # for Slurm an ordinary job
        return slurm_directives.step(groups[0].nodes, groups[0].cpus_per_node, attempt)
    words: list[str] = []
    for number, group in enumerate(groups):
        cpus = group.cpus_per_node
        fewest = (
            str(cpus)
            if cpus is not None
            else slurm_directives.fewest_cpus(f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{number}")
        )
        words += [":"] if words else ["srun"]
        words += [f"--het-group={number}", *slurm_directives.step_options(group.nodes, fewest)]
    hosts = "; ".join(
        f'scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_{number}" | head -n {group.nodes}'
        for number, group in enumerate(groups)
    )
    prepare = f'{slurm_directives.unset_step()}\n{{ {hosts}; }} >"$attempt/hosts"'
    return Launcher("slurm", words, "SLURM_PROCID", "SLURMD_NODENAME", prepare, attempt, leader_ended=LEADER_ENDED)


# srun reports ended tasks with numbers that start at 0 in each group: the leader's is the one on the leader's host.
LEADER_ENDED = (
    'LC_ALL=C sed -nE "s/.*error: ([^ ]*): tasks? 0[-,:].*$1.*/\\1/p" "$attempt/steps.log" |'
    ' xargs -rn 1 scontrol show hostnames | grep -qxF "$(head -n 1 "$attempt/hosts")"'
)


def mismatch(groups: Sequence[Group], env: Mapping[str, str]) -> str | None:
    """Return why the allocation with the variables `env` cannot hold these groups, or None if it can."""
    size = int(env.get("SLURM_HET_SIZE") or 0)
    variables = [f"SLURM_JOB_NUM_NODES_HET_GROUP_{number}" for number in range(size)] or ["SLURM_JOB_NUM_NODES"]
    have = [int(env.get(variable) or 0) for variable in variables]
    if len(have) != len(groups):
        return f"it has {len(have)} group{'s' * (len(have) > 1)} of nodes, and the job has {len(groups)}"
    for group, nodes in zip(groups, have, strict=True):
        if nodes < group.nodes:
            return f"group {group.name} needs {group.nodes} nodes, but the allocation has {nodes} in it"
    return None
