"""Run the probe on the nodes with one srun (or one bash, on this machine) that passes its source as an argument.

The probe reads no file of ours on the node, because whether nodes share files is one of the questions; reports return
through the launcher's stdout for the same reason. Only `launch` has effects.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.doctor.node import claim_probe, probe, shared_fs_probe, wire
from muster.doctor.node.wire import MARK, reports_in
from muster.launch.slurm_directives import BATCH_OPTIONS, INDEPENDENT_TASKS
from muster.ports import blocks, guards, ranges
from muster.process import Scope, source_of
from muster.rundir import atomic, exclusive, filesystem_type, private_files
from muster.slurm.step_variables import affects_further_step
from muster.spec import JobSpec
from muster.spec.sbatch_options import as_argument

JOB_MINUTES = 10
END_GRACE_S = 10.0

# Run the probe with any Python available, because the job's may be missing. --setup is the user's code: it must not
# see these arguments, and its output must not be taken for a report.
PRELUDE = r"""
muster_python=$1 muster_spare=$2 muster_setup=$3 muster_program=$4 muster_modules=$5 muster_config=$6
muster_directory=$7
set --
export MUSTER_RANK=${@RANK@:-0} MUSTER_HOST=${@HOST@:-$(uname -n)} MUSTER_DOCTOR_SETUP=0
muster_give_up() { # code: report it without a probe, and mark this node absent so that no other waits for it
  printf '@MARK@ %d 0 1 {"host": "%s", "rank": %d, "setup_code": %d}\n' \
    "$MUSTER_RANK" "$MUSTER_HOST" "$MUSTER_RANK" "$1"
  [ -n "$muster_directory" ] && touch "$muster_directory/@ABSENT@$MUSTER_RANK" 2>/dev/null
  exit 0
}
if [ -n "$muster_setup" ]; then
  exec 3>&1 >&2
  trap 'muster_code=$?; trap - EXIT; muster_give_up $((muster_code ? muster_code : 255)) >&3' EXIT
  eval "$muster_setup" || MUSTER_DOCTOR_SETUP=$?
  trap - EXIT
  exec >&3 3>&-
fi
for muster_candidate in "$muster_python" python3 /usr/bin/python3 "$muster_spare"; do
  muster_new=$("$muster_candidate" -I -S -c 'import sys; print(sys.version_info >= (3, 9))' </dev/null 2>/dev/null)
  if [ "$muster_new" = True ]; then
    exec "$muster_candidate" -I -S -c "$muster_program" "$muster_modules" "$muster_config" </dev/null
  fi
done
muster_give_up "$MUSTER_DOCTOR_SETUP"
"""

_PROGRAM = """\
import json, sys, types
for name, source in json.loads(sys.argv[1]):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main(sys.argv[2:]))
"""
_MODULES = (
    ranges,
    guards,
    blocks,
    filesystem_type,
    private_files,
    atomic,
    exclusive,
    claim_probe,
    shared_fs_probe,
    wire,
    probe,
)  # each after those that it imports; the last has main()

# Options for a batch job that srun lacks, or that make no sense for the probe's short job.
_NOT_FOR_THE_PROBE = BATCH_OPTIONS | {"array", "batch"}
_FROM_ENVIRONMENT = ("account", "constraint", "partition", "qos", "reservation")


@dataclass(frozen=True)
class ProbeOutput:
    """The launcher's exit code, the nodes' reports by node index, and the launcher's last error."""

    code: int
    reports: dict[int, dict[str, Any]]
    launcher_error: str
    """One line; empty if there was none."""


def requests(spec: JobSpec, env: Mapping[str, str]) -> dict[str, str | None]:
    """Return the job's Slurm options, including those that sbatch would read from the environment."""
    given = {name: env["SBATCH_" + name.upper()] for name in _FROM_ENVIRONMENT if env.get("SBATCH_" + name.upper())}
    return {name: value for name, value in {**given, **spec.sbatch_requests()}.items() if value != ""}


def bash_argv(config: Mapping[str, Any], setup: str, inside_step: bool) -> list[str]:
    """Return the command that runs the prelude with its arguments."""
    variables = ("SLURM_PROCID", "SLURMD_NODENAME") if inside_step else ("MUSTER_NO_TASK", "MUSTER_NO_NODE")
    marks = {"@RANK@": variables[0], "@HOST@": variables[1], "@MARK@": MARK, "@ABSENT@": shared_fs_probe.ABSENT}
    prelude = PRELUDE
    for mark, value in marks.items():
        prelude = prelude.replace(mark, value)
    modules = json.dumps([(module.__name__, source_of(module)) for module in _MODULES])
    python, directory = config["python"] or "python3", config["directory"] or ""
    arguments = [python, sys.executable, setup, _PROGRAM, modules, json.dumps(config), directory]
    return ["bash", "-c", prelude, "muster-doctor", *arguments]


def srun_argv(spec: JobSpec, nodes: int, in_allocation: bool, env: Mapping[str, str]) -> list[str]:
    """Return the srun command for one task per node, in a new job or overlapping other steps of the allocation."""
    argv = [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--distribution=cyclic",
        f"--cpus-per-task={spec.cpus_per_node or 1}",
        *INDEPENDENT_TASKS,
        "--job-name=muster-doctor",
        f"--time={JOB_MINUTES}",
    ]
    if in_allocation:
        return [*argv, "--overlap", "--cpu-bind=none"]
    options = requests(spec, env).items()
    return argv + [as_argument(name, value) for name, value in options if name not in _NOT_FOR_THE_PROBE]


def outside_step(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of a surrounding step, which would restrict or block a new one."""
    return {name: value for name, value in env.items() if not affects_further_step(name)}


async def launch(argv: Sequence[str], workdir: str, directory: str | None) -> ProbeOutput:
    """Run the probe to its end; if this process is interrupted or killed, the probe ends and `directory` is removed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        removed = [directory] if directory else []
        async with Scope("doctor", lost_owner_grace=END_GRACE_S, directories=removed) as scope:
            process = await scope.spawn(
                argv, env=outside_step(os.environ), cwd=workdir, stdout=out.fileno(), stderr=err.fileno()
            )
            exit = await process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return ProbeOutput(exit.shell_code, reports_in(texts[0]), last_error(texts[1]))


def last_error(stderr: str) -> str:
    """Return srun's last line that does not report progress."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if not re.match(r"srun: (job|Job) \d+ (queued|has been allocated)", line)]
    return errors[-1].removeprefix("srun: ").removeprefix("error: ")[:300] if errors else ""
