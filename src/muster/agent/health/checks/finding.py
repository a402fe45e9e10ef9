"""What a check has found, and the node that it is given."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Verdict(str, Enum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # the node has nothing to check, or the check may not read it


@dataclass(frozen=True)
class Finding:
    """A verdict with its reason, and the measured value if nodes are compared by it."""

    verdict: Verdict
    reason: str
    measured: float | None = None


def passed(reason: str = "", measured: float | None = None) -> Finding:
    return Finding(Verdict.PASSED, reason, measured)


def failed(reason: str) -> Finding:
    return Finding(Verdict.FAILED, reason)


def skipped(reason: str) -> Finding:
    return Finding(Verdict.SKIPPED, reason)


@dataclass(frozen=True)
class CheckedNode:
    """The node as checks see it. Outputs of programs are kept, since several checks read the same."""

    env: Mapping[str, str]
    temp_dir: str
    run_dir: str  # a directory of the run on the shared filesystem
    _outputs: dict[tuple[str, ...], tuple[int, str] | None] = field(default_factory=dict)
    _locks: dict[tuple[str, ...], threading.Lock] = field(default_factory=dict)

    def output(self, *argv: str) -> tuple[int, str] | None:
        """Return the exit code and the output of a program, stderr included; None if it is not installed."""
        with self._locks.setdefault(argv, threading.Lock()):
            if argv not in self._outputs:
                self._outputs[argv] = run_program(argv, self.env)
            return self._outputs[argv]


def run_program(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, str] | None:
    """Run a program to its end. The deadline of the check limits it: its process ends with the check's."""
    try:
        done = subprocess.run(
            argv,
            env={**env, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError:
        return None
    return done.returncode, done.stdout
