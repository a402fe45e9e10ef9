"""What Slurm says about itself and its partitions: three questions, asked once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

DEADLINE_S = 60.0
PARTITION_KEYS = ("PartitionName", "Default", "State", "TotalNodes", "MinNodes", "MaxNodes", "DefaultTime", "MaxTime")

Ask = Callable[[list[str]], str]


class NoAnswer(Exception):
    """A Slurm command failed; the text is its own last word."""


@dataclass(frozen=True)
class SlurmFacts:
    """Empty where Slurm did not answer; then `error` says why."""

    client: str = ""
    controller: str = ""
    partitions: list[dict[str, str]] = field(default_factory=list)
    """As `scontrol show partition` has them: its PARTITION_KEYS."""
    node_states: dict[str, dict[str, int]] = field(default_factory=dict)
    """Partition -> state -> number of nodes."""
    pyxis: bool = False
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ask_slurm(ask: Ask | None = None) -> SlurmFacts:
    """Versions, partitions, states of nodes. Never raises: no answer is a finding too."""
    ask = ask or _command
    client, pyxis = "", False
    try:
        client = ask(["sinfo", "--version"]).strip()
        pyxis = "--container-image" in ask(["srun", "--help"])
        config = ask(["scontrol", "show", "config"])
        partitions = partitions_in(ask(["scontrol", "--oneliner", "show", "partition"]))
        states = states_in(ask(["sinfo", "--noheader", "--format=%R|%T|%D"]))
    except NoAnswer as error:
        return SlurmFacts(client=client, pyxis=pyxis, error=str(error))
    return SlurmFacts(client, _value(config, "SLURM_VERSION"), partitions, states, pyxis)


def partitions_in(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return [{key: partition[key] for key in PARTITION_KEYS if key in partition} for partition in found]


def states_in(text: str) -> dict[str, dict[str, int]]:
    """One line for each partition and state; a mark after a state (`idle*`: not responding) stays part of it."""
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


def _command(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{argv[0]} did not answer within {DEADLINE_S:g} s") from None
    except OSError as error:
        raise NoAnswer(f"{argv[0]} could not be run: {error.strerror}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NoAnswer(f"{argv[0]}: {said[-1] if said else f'ended with code {done.returncode}'}")
    return done.stdout
