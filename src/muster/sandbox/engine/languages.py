"""The languages: the programs that each needs on the node, and the steps that compile and run a program in it.

A step runs in the scratch directory of its program; file names are relative to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.sandbox.models import ProgramStep

MAX_ARGUMENT_CHARS = 100_000  # the kernel's limit for one argument is 128 KiB


@dataclass(frozen=True)
class Language:
    """How a program is run: the name of its source file, the command that runs it, and the compiler's if it has one.

    In commands `{file}` is the source file. Executables are located once, when the server starts.
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
    """The language is unknown or not installed on this node."""


class Languages:
    """The languages of this node: those whose executables are on the PATH of sandboxed programs."""

    def __init__(self, path: str) -> None:
        self._paths: dict[str, str] = {}
        self.found: dict[str, Language] = {}
        for name, language in TABLE.items():
            commands = [command for command in (language.compile, language.run) if command is not None]
            programs = [command[0] for command in commands if not command[0].startswith("./")]
            paths = {program: shutil.which(program, path=path) for program in programs}
            if all(paths.values()):
                self.found[name] = language
                self._paths.update({program: found for program, found in paths.items() if found})

    @property
    def names(self) -> list[str]:
        return [IPYTHON, PYTHON, *self.found]

    def known(self, name: str) -> str:
        """Return the canonical name of a language; UnknownLanguage lists the installed ones."""
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
        """Return the steps: compile (for compiled languages) and run.

        `timeouts` are those of the two steps in seconds; `files` maps names to contents in base64.
        """
        extra: dict[str, Any] = {}
        if files:
            extra["files"] = dict(files)
        if limits:
            extra["limits"] = dict(limits)
        if name == PYTHON:
            return (ProgramStep({"do": "python", "code": code, **extra}, timeouts[1], stdin),)
        if name == "shell" and len(code) < MAX_ARGUMENT_CHARS and "\0" not in code:
            return (
                ProgramStep({"do": "exec", "argv": [self._paths["bash"], "-c", code], **extra}, timeouts[1], stdin),
            )
        language = self.found[name]
        source = {"texts": {language.file: code}, **extra}
        run: dict[str, Any] = {"do": "exec", "argv": self._command(language.run, language.file)}
        if language.compile is None:
            return (ProgramStep({**run, **source}, timeouts[1], stdin),)
        compiling = {"do": "exec", "argv": self._command(language.compile, language.file), **source}
        if limits:
            run["limits"] = dict(limits)
        return ProgramStep(compiling, timeouts[0]), ProgramStep(run, timeouts[1], stdin)

    def _command(self, template: Sequence[str], file: str) -> list[str]:
        return [self._paths.get(template[0], template[0]), *(part.replace("{file}", file) for part in template[1:])]
