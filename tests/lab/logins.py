"""`muster` and other commands as an ordinary user of the lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.conftest import SlurmCommand

from muster.lab import Lab


class UserCommand(SlurmCommand):
    """`muster` in a new directory of the user's home, with the Python of this test."""

    def __init__(self, lab: Lab, user: str) -> None:
        if problem := lab.python_problem(user):
            raise AssertionError(problem)
        made = lab.exec(["mktemp", "-d", "-p", "."], user=user, capture_output=True, text=True, check=True)
        cwd = lab.plan.home(lab.plan.user(user)) / made.stdout.strip()
        tag = {name: value for name, value in os.environ.items() if name == "MUSTER_TEST_TAG"}
        super().__init__(cwd.resolve(), sys.executable, tag, lab)
        self.user = user

    def start(self, *args: str, **popen: Any) -> subprocess.Popen[str]:
        return self.program(self.cli, "-m", "muster.cli.main", *args, **popen)

    def program(self, *argv: str, **popen: Any) -> subprocess.Popen[str]:
        """Start a program on the login node."""
        pipe = subprocess.PIPE
        options = {"cwd": self.cwd, "env": self.env, "text": True, "stdin": subprocess.DEVNULL, "stdout": pipe}
        return self.lab.popen(argv, user=self.user, **{**options, "stderr": pipe, **popen})

    def slurm(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.lab.exec(argv, user=self.user, cwd=self.cwd, capture_output=True, text=True, timeout=120)

    def on_node(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.lab.exec(list(argv), node=node, user=self.user, capture_output=True, text=True, timeout=120)

    def write(self, name: str, text: str) -> Path:
        """Write a file that belongs to the user."""
        path = self.cwd / name
        path.write_text(text)
        uid = self.lab.plan.user(self.user).uid
        os.chown(path, uid, uid)
        return path

    @contextmanager
    def running(self, *args: str, until: str, **options: Any) -> Iterator[Path]:
        """A run in the background whose driver has written `until`; it ends itself or is stopped afterwards."""
        process = self.start(*args, **options)
        try:
            yield self.wait_for_driver(until)
        finally:
            self("stop")
            out, err = process.communicate(timeout=180)
        assert process.returncode in (0, 143), f"{out}\n{err}"
