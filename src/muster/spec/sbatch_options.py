"""List the options of sbatch (Slurm 22.05 to 24.11), and those that Muster sets itself.

The lists serve to refuse a misspelt `--sbatch KEY=VALUE` before the job is submitted. SPANK plugins of a site add
options, so a key that resembles no known option is passed through.
"""

from __future__ import annotations

import difflib

_VALUE = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type
mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks
ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer
priority profile qos reservation segment signal sockets-per-node switches thread-spec threads-per-core
time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap
"""
_OPTIONAL_VALUE = "exclusive get-user-env nice no-kill oom-kill-step propagate"
_NO_VALUE = """
contiguous external help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot requeue
spread-job stepmgr test-only usage use-min-nodes verbose version wait
"""

NO_VALUE = frozenset(_NO_VALUE.split())
KNOWN = frozenset(_VALUE.split()) | frozenset(_OPTIONAL_VALUE.split()) | NO_VALUE

SHORT = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "S": "core-spec",
    "V": "version",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "h": "help",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}

_ONE_AGENT = (
    "Muster runs one agent on every node; set the number of nodes with --nodes, and of processes on each node with "
    "--procs-per-node"
)
_OUTPUT_PARSED = "Muster parses the output of sbatch"

DECIDED = {
    "chdir": "use --workdir",
    "cpus-per-node": "use --cpus-per-node",
    "cpus-per-task": "Muster runs one task per node, which has all CPUs of the job; use --cpus-per-node",
    "help": "it is not an option of a job",
    "job-name": "use --name",
    "no-kill": "Muster decides whether the job survives a lost node; use --on-node-loss",
    "nodes": "use --nodes",
    "ntasks": _ONE_AGENT,
    "ntasks-per-core": _ONE_AGENT,
    "ntasks-per-gpu": _ONE_AGENT,
    "ntasks-per-node": _ONE_AGENT,
    "ntasks-per-socket": _ONE_AGENT,
    "parsable": _OUTPUT_PARSED,
    "quiet": _OUTPUT_PARSED,
    "test-only": "use --dry-run",
    "usage": "it is not an option of a job",
    "version": "it is not an option of a job",
    "wait": "`muster run` waits unless --detach is given",
    "wrap": "Muster writes the batch script; give the command after --",
}
"""Options that cannot be passed through, each with the reason or the replacement."""

PER_NODE = {"gpus": "--gpus-per-node", "gpus-per-task": "--gpus-per-node"}
"""Options that can be passed through, but for which users mean one of Muster's: its counts are per node."""

# Minimum similarity of a misspelling; the container-* options of pyxis stay below it.
_MISSPELLING_CUTOFF = 0.85


def option_name(key: str) -> str:
    """Return the long name for `key`: leading dashes are ignored, `_` is `-`, one letter is the short form."""
    bare = key.strip().lstrip("-")
    return SHORT.get(bare, bare.replace("_", "-"))


def refusal(name: str) -> str | None:
    """Return why the sbatch option `name` (from `option_name`) cannot be passed through, or None if it can."""
    if name in DECIDED:
        return f"cannot be set here: {DECIDED[name]}"
    if name in KNOWN:
        return None
    if not name or not all(char.isalnum() or char in "-." for char in name):
        return f"{name!r} is not the name of an sbatch option"
    near = nearest(name)
    if near:
        return f"is not an sbatch option; did you mean {', '.join(near)}?"
    return None


def nearest(name: str) -> list[str]:
    """Return the known options that `name` may be a misspelling or an abbreviation of, best first."""
    near = difflib.get_close_matches(name, sorted(KNOWN), n=3, cutoff=_MISSPELLING_CUTOFF)
    return near or sorted(option for option in KNOWN if option.startswith(name))[:3]


def as_argument(name: str, value: str | None) -> str:
    """Return the option as one unquoted word of sbatch's command line: `--mem=4G`; `--requeue` without value."""
    return f"--{name}" if value is None else f"--{name}={value}"
