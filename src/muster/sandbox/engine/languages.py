"""The languages: what each needs on the node, and the steps that run a program of it.

A step runs in the scratch of its program; names of files are relative to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.sandbox.models import ProgramStep

LONGEST_ARGUMENT = 100_000  # the kernel's limit for one is 128 KiB


@dataclass(frozen=True)
class Language:
    """How a program is run: its file, the compiler's line if there is one, the line that runs it.

    In lines `{file}` is the source. The first word is looked up once, when the server starts.
    """

    file: str
    run: tuple[str, ...]
    compile: tuple[str, ...] | None = None


TABLE: dict[str, Language] = {
    "shell": Language("script.sh", ("bash", "{file}")),
    "c": Language("main.c", ("./program",), ("gcc", "-O2", "-o", "program", "{file}", "-lm", "-pthread")),
    "cpp": Language("main.cpp", ("./program",), ("g++", "-std=c++17", "-O2", "-o", "program", "{file}", "-pthread")),
    "javascript": Language("main.js", ("node", "{file}")),
    "pypy3": Language("main.py", ("pypy3", "{file}")),
    "perl": Language("main.pl", ("perl", "{file}")),
    "ruby": Language("main.rb", ("ruby", "{file}")),
    "lua": Language("main.lua", ("lua", "{file}")),
    "r": Language("main.R", ("Rscript", "--vanilla", "{file}")),
    "php": Language("main.php", ("php", "{file}")),
    "rust": Language("main.rs", ("./program",), ("rustc", "-O", "-o", "program", "{file}")),
    "go": Language("main.go", ("./program",), ("go", "build", "-o", "program", "{file}")),
    "java": Language("Main.java", ("java", "-cp", ".", "Main"), ("javac", "{file}")),
    "lean4": Language("main.lean", ("lean", "{file}")),
}
ALIASES = {
    "python3": "python",
    "py": "python",
    "bash": "shell",
    "sh": "shell",
    "c++": "cpp",
    "js": "javascript",
    "nodejs": "javascript",
    "node": "javascript",
    "R": "r",
    "lean": "lean4",
}
IPYTHON, PYTHON = "ipython", "python"


class UnknownLanguage(ValueError):
    """Not known, or not to be had on this node."""


class Languages:
    """Those of this node: whose programs were found on the path that sandboxed programs get."""

    def __init__(self, path: str) -> None:
        self._where: dict[str, str] = {}
        self.found: dict[str, Language] = {}
        for name, language in TABLE.items():
            lines = [line for line in (language.compile, language.run) if line is not None]
            programs = [line[0] for line in lines if not line[0].startswith("./")]
            places = {program: shutil.which(program, path=path) for program in programs}
            if all(places.values()):
                self.found[name] = language
                self._where.update({program: place for program, place in places.items() if place})

    @property
    def names(self) -> list[str]:
        return [IPYTHON, PYTHON, *self.found]

    def known(self, name: str) -> str:
        """Its name here; UnknownLanguage names those that there are."""
        name = ALIASES.get(name, name)
        if name in self.names:
            return name
        if name in TABLE:
            raise UnknownLanguage(f"language {name!r} is not installed on this node; there are {', '.join(self.names)}")
        raise UnknownLanguage(f"unknown language {name!r}; there are {', '.join(self.names)}")

    def steps(
        self,
        name: str,
        code: str,
        stdin: bytes,
        timeouts: tuple[float, float],
        files: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[ProgramStep, ...]:
        """To compile (if it is), and to run. `timeouts` are of the two; `files` hold base64."""
        extra: dict[str, Any] = {}
        if files:
            extra["files"] = dict(files)
        if limits:
            extra["limits"] = dict(limits)
        if name == PYTHON:
            return (ProgramStep({"do": "python", "code": code, **extra}, timeouts[1], stdin),)
        if name == "shell" and len(code) < LONGEST_ARGUMENT and "\0" not in code:
            return (
                ProgramStep({"do": "exec", "argv": [self._where["bash"], "-c", code], **extra}, timeouts[1], stdin),
            )
        language = self.found[name]
        source = {"texts": {language.file: code}, **extra}
        run: dict[str, Any] = {"do": "exec", "argv": self._line(language.run, language.file)}
        if language.compile is None:
            return (ProgramStep({**run, **source}, timeouts[1], stdin),)
        compiling = {"do": "exec", "argv": self._line(language.compile, language.file), **source}
        if limits:
            run["limits"] = dict(limits)
        return ProgramStep(compiling, timeouts[0]), ProgramStep(run, timeouts[1], stdin)

    def _line(self, line: Sequence[str], file: str) -> list[str]:
        return [self._where.get(line[0], line[0]), *(word.replace("{file}", file) for word in line[1:])]
