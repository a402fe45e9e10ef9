"""Limits of the operating system that Ray exceeds."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from muster.agent.health import limits


def in_another_process(soft: int, hard: int, code: str) -> str:
    """Run code under other limits than those of this process."""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    done = subprocess.run([sys.executable, "-c", code], preexec_fn=lower, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_limit_on_open_files_is_raised_as_far_as_the_administrator_allows() -> None:
    code = (
        "import resource; from muster.agent.health import limits; limits.raise_limits();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert in_another_process(256, 4000, code) == "(4000, 4000)"
    assert in_another_process(3000, 3000, code) == "(3000, 3000)"


def test_too_few_open_files_are_warned_about_before_ray_starts() -> None:
    code = "from muster.agent.health import limits; print(limits.warnings(1))"
    assert "only 1000 open files are allowed" in in_another_process(1000, 1000, code)
    assert in_another_process(10000, 10000, code) == "[]"


@contextmanager
def processes_allowed(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Pretend a limit on processes: the tests run as root, which has none."""
    real = resource.getrlimit
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(limits, "own_threads", lambda: 500)
    fake = {resource.RLIMIT_NPROC: (count, count)}
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: fake.get(which) or real(which))
    yield
    monkeypatch.undo()


def test_too_few_processes_for_the_cpus_are_warned_about_with_the_error_that_would_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with processes_allowed(monkeypatch, 1024):
        (warning,) = [text for text in limits.warnings(cpus=64) if "processes" in text]
    assert "only 1024 processes and threads" in warning and "pthread_create" in warning
    with processes_allowed(monkeypatch, 100_000):
        assert not [text for text in limits.warnings(cpus=64) if "processes" in text]


def test_threads_are_counted_as_the_kernel_does() -> None:
    assert limits.own_threads() >= 1
