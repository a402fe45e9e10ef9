"""The languages of this node: those that are installed, and the steps that compile and run a program in them.

A step runs in the scratch directory of its program; file names are relative to it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from muster.sandbox.engine.language_table import (
    ALIASES,
    BY_NAME,
    CODE,
    FILE,
    IPYTHON,
    NAME,
    PYTHON,
    Language,
    Toolchain,
)
from muster.sandbox.models import ProgramStep

MAX_ARGUMENT_CHARS = 100_000  # the kernel's limit for one argument is 128 KiB


class UnknownLanguage(ValueError):
    """The language is unknown or not installed on this node."""


class Languages:
    """The languages of this node: those with a toolchain whose programs are on the PATH of sandboxed programs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._paths: dict[str, str] = {}
        self.found: dict[str, Toolchain | None] = {}  # None: the warm interpreter
        for name, language in BY_NAME.items():
            available = [one for one in language.toolchains if self._is_available(one)]
            if available or not language.toolchains:
                self.found[name] = available[0] if available else None

    def _is_available(self, toolchain: Toolchain) -> bool:
        for program in toolchain.requirements:
            path = shutil.which(program, path=self._path) if "/" not in program else program
            if path is None or not os.path.exists(path):
                return False
            self._paths[program] = path
        return True

    @property
    def names(self) -> list[str]:
        return list(self.found)

    def known(self, name: str) -> str:
        """Return the canonical name of a language; UnknownLanguage lists the installed ones."""
        name = ALIASES.get(name, name)
        if name in self.found:
            return name
        if name in BY_NAME:
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
        language, toolchain = BY_NAME[name], self.found[name]
        every: dict[str, Any] = {"limits": dict(limits)} if limits else {}
        if language.reserves_memory:
            every["reserves_memory"] = True
            every.get("limits", {}).pop("memory_mb", None)
        first: dict[str, Any] = {"files": dict(files)} if files else {}
        if toolchain is None:
            return (ProgramStep({"do": "python", "code": code, **first, **every}, timeouts[1], stdin),)
        if language.environment:
            every["env"] = dict(language.environment)
        texts = dict(language.texts)
        if CODE not in toolchain.run or not _fits_argument(code):
            texts[_file(language, code)] = language.prepare(code)
        if texts:
            first["texts"] = texts
        run = {"do": "exec", "argv": self._command(toolchain.run, language, code), **every}
        if toolchain.compile is None:
            return (ProgramStep({**run, **first}, timeouts[1], stdin),)
        compiling = {"do": "exec", "argv": self._command(toolchain.compile, language, code), **first, **every}
        return ProgramStep(compiling, timeouts[0]), ProgramStep(run, timeouts[1], stdin)

    def _command(self, template: tuple[str, ...], language: Language, code: str) -> list[str]:
        """Return the command: with the program as an argument, or with the name of its file if it does not fit."""
        if CODE in template and not _fits_argument(code):
            template = (template[0], FILE)
        values = {FILE: _file(language, code), NAME: language.name_in(code)}
        words = [self._paths.get(template[0], template[0])]
        for word in template[1:]:
            for placeholder, value in values.items():
                word = word.replace(placeholder, value)
            words.append(code if word == CODE else word)
        return words


def _fits_argument(code: str) -> bool:
    return len(code) < MAX_ARGUMENT_CHARS and "\0" not in code


def _file(language: Language, code: str) -> str:
    return language.file.replace(NAME, language.name_in(code))


__all__ = ["IPYTHON", "MAX_ARGUMENT_CHARS", "PYTHON", "Languages", "UnknownLanguage"]
