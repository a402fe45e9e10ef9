"""Read the fenced code blocks of Markdown pages, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_OPERATORS = {";", "&&", "||", "|", "&"}
_LAUNCHERS = {"srun", "salloc", "sudo"}
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


@dataclass(frozen=True)
class FencedBlock:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name of the file that a block shows: its first line is a comment with nothing else."""
        named = re.match(r"# ([\w./-]+\.\w+)\n", self.text)
        return named[1] if named else None


@dataclass(frozen=True)
class ShellCommand:
    """One simple command: assignments before it, and its words."""

    assignments: dict[str, str]
    words: tuple[str, ...]

    def from_program(self, program: str) -> tuple[str, ...] | None:
        """Return the words from this program on, also where a launcher starts it."""
        launched = self.words[:1] == (program,) or (self.words[:1] and self.words[0] in _LAUNCHERS)
        return self.words[self.words.index(program) :] if launched and program in self.words else None


def fenced_blocks(page: Path) -> list[FencedBlock]:
    """Return the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        FencedBlock(page, text.count("\n", 0, found.start()) + 1, found[1], found[2]) for found in _FENCE.finditer(text)
    ]


def shell_text(block: FencedBlock) -> str:
    """Return the commands of a block as shell code: of a console, what follows the prompts."""
    if block.language != "console":
        return block.text
    return "".join(f"{line[2:]}\n" for line in block.text.splitlines() if line.startswith("$ "))


def shell_commands(block: FencedBlock) -> list[ShellCommand]:
    """Return the simple commands of a block of shell code."""
    commands = []
    for line in shell_text(block).replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        reader.whitespace_split, reader.commenters = True, "#"
        words: list[str] = []
        for word in [*reader, ";"]:
            if word not in _OPERATORS:
                words.append(word)
            elif words:
                commands.append(_command(words))
                words = []
    return commands


def _command(words: list[str]) -> ShellCommand:
    count = next((index for index, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), len(words))
    return ShellCommand(dict(word.split("=", 1) for word in words[:count]), tuple(words[count:]))  # type: ignore[misc]
