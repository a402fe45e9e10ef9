"""Query Slurm's versions, partitions and node states."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

COMMAND_TIMEOUT_S = 60.0
PARTITION_KEYS = ("PartitionName", "Default", "State", "TotalNodes", "MinNodes", "MaxNodes", "DefaultTime", "MaxTime")

RunCommand = Callable[[list[str]], str]


class SlurmCommandError(Exception):
    """A Slurm command failed; the text is the last line it printed."""


@dataclass(frozen=True)
class SlurmFacts:
    """Facts about Slurm; where it did not answer they are empty and `error` has the reason."""

    client: str = ""
    controller: str = ""
    partitions: list[dict[str, str]] = field(default_factory=list)
    """The PARTITION_KEYS in the output of `scontrol show partition`."""
    node_states: dict[str, dict[str, int]] = field(default_factory=dict)
    """Partition -> state -> number of nodes."""
    pyxis: bool = False
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def query_slurm(run: RunCommand | None = None) -> SlurmFacts:
    """Return versions, partitions and node states; an unreachable Slurm is a fact, not an exception."""
    run = run or _run_command
    client, pyxis = "", False
    try:
        client = run(["sinfo", "--version"]).strip()
        pyxis = "--container-image" in run(["srun", "--help"])
        config = run(["scontrol", "show", "config"])
        partitions = partitions_in(run(["scontrol", "--oneliner", "show", "partition"]))
        states = states_in(run(["sinfo", "--noheader", "--format=%R|%T|%D"]))
    except SlurmCommandError as error:
        return SlurmFacts(client=client, pyxis=pyxis, error=str(error))
    return SlurmFacts(client, _value(config, "SLURM_VERSION"), partitions, states, pyxis)


def partitions_in(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return [{key: partition[key] for key in PARTITION_KEYS if key in partition} for partition in found]


def states_in(text: str) -> dict[str, dict[str, int]]:
    """Parse one line per partition and state; a suffix of a state (`idle*`: not responding) is kept."""
    states: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        partition, state, count = line.strip().split("|")
        of_partition = states.setdefault(partition, {})
        of_partition[state] = of_partition.get(state, 0) + int(count)
    return states


def _value(config: str, name: str) -> str:
    for line in config.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == name:
            return value.strip()
    return ""


def _run_command(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise SlurmCommandError(f"{argv[0]} did not answer within {COMMAND_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise SlurmCommandError(f"{argv[0]} could not be run: {error.strerror}") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise SlurmCommandError(f"{argv[0]}: {lines[-1] if lines else f'ended with code {done.returncode}'}")
    return done.stdout
