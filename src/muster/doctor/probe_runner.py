"""How the probe gets onto the nodes: one srun (or one bash, on this machine) that carries its own source.

Nothing is read from a file on the node, since whether it sees our files is one of the questions; reports come back by
the launcher's stdout for the same reason. What starts where is pure; `launch` is the edge.
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

from muster.doctor.node import mounts, probe, shared_fs_probe, wire
from muster.doctor.node.wire import MARK, reports_in
from muster.ports import blocks, guards, ranges
from muster.process import Scope, source_of
from muster.spec import JobSpec
from muster.spec.sbatch_options import as_argument

JOB_MINUTES = 10
END_GRACE_S = 10.0

# Become the probe, by whichever Python is there: the job's own may be what is missing. The set-up is the user's:
# it must not see these arguments, and what it prints is no report.
PRELUDE = r"""
muster_python=$1 muster_spare=$2 muster_setup=$3 muster_program=$4 muster_modules=$5 muster_order=$6
muster_directory=$7
set --
export MUSTER_RANK=${@RANK@:-0} MUSTER_HOST=${@HOST@:-$(uname -n)} MUSTER_DOCTOR_SETUP=0
muster_give_up() { # code: all that can be told without a probe; nobody need wait for this node
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
    exec "$muster_candidate" -I -S -c "$muster_program" "$muster_modules" "$muster_order" </dev/null
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
    mounts,
    shared_fs_probe,
    wire,
    probe,
)  # each after those that it imports; the last has main()

# Of a surrounding step: they would shrink or block a further one.
_STEP_SCOPED = re.compile(
    r"SLURM_(STEP.*|CPU_BIND.*|MEM_BIND.*|PROCID|LOCALID|NODEID|GTIDS|NTASKS|NPROCS|NTASKS_PER_NODE|TASKS_PER_NODE"
    r"|CPUS_PER_TASK|DISTRIBUTION|LABELIO|STDOUTMODE|STDERRMODE)"
)
# Meant for a batch job, of no use or none of srun's options: the probe's job is a short one of its own.
_NOT_FOR_THE_PROBE = frozenset(
    [
        "array",
        "batch",
        "begin",
        "comment",
        "dependency",
        "error",
        "export",
        "export-file",
        "get-user-env",
        "hold",
        "input",
        "kill-on-invalid-dep",
        "no-requeue",
        "open-mode",
        "output",
        "requeue",
        "signal",
        "time",
        "time-min",
    ]
)
_FROM_ENVIRONMENT = ("account", "constraint", "partition", "qos", "reservation")


@dataclass(frozen=True)
class Returned:
    """What came back from the nodes."""

    code: int
    reports: dict[int, dict[str, Any]]
    said: str
    """The launcher's own last words, on one line."""


def requests(spec: JobSpec, env: Mapping[str, str]) -> dict[str, str | None]:
    """The job's options for Slurm, with those that sbatch would take from its variables."""
    given = {name: env["SBATCH_" + name.upper()] for name in _FROM_ENVIRONMENT if env.get("SBATCH_" + name.upper())}
    return {name: value for name, value in {**given, **spec.sbatch_requests()}.items() if value != ""}


def bash_words(order: Mapping[str, Any], setup: str, inside_step: bool) -> list[str]:
    """The prelude with all it needs as arguments."""
    variables = ("SLURM_PROCID", "SLURMD_NODENAME") if inside_step else ("MUSTER_NO_TASK", "MUSTER_NO_NODE")
    marks = {"@RANK@": variables[0], "@HOST@": variables[1], "@MARK@": MARK, "@ABSENT@": shared_fs_probe.ABSENT}
    prelude = PRELUDE
    for mark, value in marks.items():
        prelude = prelude.replace(mark, value)
    modules = json.dumps([(module.__name__, source_of(module)) for module in _MODULES])
    python, directory = order["python"] or "python3", order["directory"] or ""
    words = [python, sys.executable, setup, _PROGRAM, modules, json.dumps(order), directory]
    return ["bash", "-c", prelude, "muster-doctor", *words]


def srun_words(spec: JobSpec, nodes: int, in_allocation: bool, env: Mapping[str, str]) -> list[str]:
    """One task on each node, in a job of its own or beside whatever runs in the allocation."""
    words = [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--distribution=block",
        f"--cpus-per-task={spec.cpus_per_node or 1}",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=none",
        "--export=ALL",
        "--mpi=none",
        "--job-name=muster-doctor",
        f"--time={JOB_MINUTES}",
    ]
    if in_allocation:
        return [*words, "--overlap", "--cpu-bind=none"]
    asked = requests(spec, env).items()
    return words + [as_argument(name, value) for name, value in asked if name not in _NOT_FOR_THE_PROBE]


def outside_step(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not _STEP_SCOPED.fullmatch(name)}


async def launch(words: Sequence[str], workdir: str, directory: str | None) -> Returned:
    """Run it to its end. If we are interrupted or killed, it ends, and `directory` is removed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        removed = [directory] if directory else []
        async with Scope("doctor", lost_owner_grace=END_GRACE_S, directories=removed) as scope:
            process = await scope.spawn(
                words, env=outside_step(os.environ), cwd=workdir, stdout=out.fileno(), stderr=err.fileno()
            )
            exit = await process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Returned(exit.shell_code, reports_in(texts[0]), last_words(texts[1]))


def last_words(stderr: str) -> str:
    """What srun said last that is no mere progress."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if not re.match(r"srun: (job|Job) \d+ (queued|has been allocated)", line)]
    return telling[-1].removeprefix("srun: ").removeprefix("error: ")[:300] if telling else ""
