"""The operating system's limits that Ray runs into."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from muster.agent.health import limits


def in_a_process_of_its_own(soft: int, hard: int, code: str) -> str:
    """Limits of this test process must stay as they are."""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    done = subprocess.run([sys.executable, "-c", code], preexec_fn=lower, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_limit_on_open_files_is_raised_as_far_as_the_administrator_allows() -> None:
    code = (
        "import resource; from muster.agent.health import limits; limits.raise_limits();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert in_a_process_of_its_own(256, 4000, code) == "(4000, 4000)"
    assert in_a_process_of_its_own(3000, 3000, code) == "(3000, 3000)"


def test_too_few_open_files_are_told_before_ray_starts() -> None:
    code = "from muster.agent.health import limits; print(limits.warnings(1))"
    assert "only 1000 open files are allowed" in in_a_process_of_its_own(1000, 1000, code)
    assert in_a_process_of_its_own(10000, 10000, code) == "[]"


@contextmanager
def processes_allowed(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Root has no such limit, so its value is all that can be pretended here."""
    real = resource.getrlimit
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(limits, "own_threads", lambda: 500)
    fake = {resource.RLIMIT_NPROC: (count, count)}
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: fake.get(which) or real(which))
    yield
    monkeypatch.undo()


def test_too_few_processes_for_the_cpus_are_told_with_the_error_that_would_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with processes_allowed(monkeypatch, 1024):
        (warning,) = [text for text in limits.warnings(cpus=64) if "processes" in text]
    assert "only 1024 processes and threads" in warning and "pthread_create" in warning
    with processes_allowed(monkeypatch, 100_000):
        assert not [text for text in limits.warnings(cpus=64) if "processes" in text]


def test_threads_are_counted_as_the_kernel_does() -> None:
    assert limits.own_threads() >= 1
