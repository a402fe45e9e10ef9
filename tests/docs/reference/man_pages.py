"""The manual pages of the package, from the definitions of the command line, for `man muster-run`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
from tests.docs.reference.commands import all_commands, description, options

from muster.cli.main import SECTIONS, cli

MAN = Path(__file__).parents[3] / "man" / "man1"


def escaped(text: str) -> str:
    """Return text as roff shows it unchanged."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def paragraphs(text: str | None) -> Iterator[str]:
    """Yield the lines of a help text; blocks that click does not wrap stay as they are."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        if part.startswith("\b\n"):
            yield from (".PP", ".nf", *escaped(part[2:]).splitlines(), ".fi")
        elif part.strip():
            yield from (".PP", escaped(" ".join(part.split())))


def option_lines(command: click.Command) -> Iterator[str]:
    for option in options(command):
        value = "" if option.is_flag or option.count else f" {option.metavar or option.type.name.upper()}"
        yield from (".TP", f"\\fB{escaped(', '.join([*option.opts, *option.secondary_opts]))}\\fR{escaped(value)}")
        yield escaped(" ".join(description(option).split()))


def head(name: str, summary: str) -> Iterator[str]:
    yield f'.TH "{escaped(name).upper()}" "1" "" "Muster" "Muster"'
    yield from (".SH NAME", f"{escaped(name)} \\- {escaped(summary.rstrip('.'))}")


def command_page(name: str, command: click.Command, summary: str, subcommands: dict[str, click.Command]) -> str:
    """Return the page of a command with its subcommands; `name` is as in `muster run`."""
    lines = list(head(name.replace(" ", "-"), summary))
    lines += [".SH SYNOPSIS", *usage(name, command), ".SH DESCRIPTION", *list(paragraphs(command.help))[1:]]
    if listed := list(option_lines(command)):
        lines += [".SH OPTIONS", *listed]
    for path, subcommand in subcommands.items():
        lines += [f".SH {escaped(path).upper()}", *usage(path, subcommand), *paragraphs(subcommand.help)]
        lines += option_lines(subcommand)
    if epilog := inspect.cleandoc(command.epilog or "").replace("\b\n", "", 1):
        title, _, examples = epilog.partition("\n")
        lines += [f".SH {escaped(title.rstrip(':')).upper()}", ".nf", *escaped(examples).splitlines(), ".fi"]
    return "\n".join([*lines, ".SH SEE ALSO", r"\fBmuster\fR(1)", ""])


def usage(name: str, command: click.Command) -> list[str]:
    words = command.collect_usage_pieces(click.Context(command, info_name=name))
    return [f"\\fB{escaped(name)}\\fR {escaped(' '.join(words))}".rstrip()]


def main_page() -> str:
    """Return the page of `muster`: the commands by section."""
    first, _, examples = inspect.cleandoc(cli.help or "").partition("\n\n")
    lines = [*head("muster", first), ".SH SYNOPSIS", r"\fBmuster\fR COMMAND [ARGS]..."]
    lines += [".SH DESCRIPTION", *list(paragraphs(first))[1:], *paragraphs(examples)]
    for section, commands in SECTIONS.items():
        lines.append(f".SH {section.upper()}")
        for name, summary in commands.items():
            lines += [".TP", f"\\fBmuster\\-{escaped(name)}\\fR(1)", escaped(summary)]
    return "\n".join([*lines, ""])


def man_pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    commands = dict(all_commands())
    pages = {"muster.1": main_page()}
    for section in SECTIONS.values():
        for name, summary in section.items():
            path = f"muster {name}"
            inner = {other: command for other, command in commands.items() if other.startswith(f"{path} ")}
            pages[f"muster-{name}.1"] = command_page(path, commands[path], summary, inner)
    return pages


def write_man_pages() -> None:
    """Write all pages, and remove those of commands that are gone."""
    MAN.mkdir(parents=True, exist_ok=True)
    pages = man_pages()
    for path in MAN.iterdir():
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (MAN / name).write_text(text, encoding="utf-8")
