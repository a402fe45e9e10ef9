"""The page of commands and options, from the definitions of the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from tests.docs.reference.markdown import code, heading, table

from muster.cli.main import cli
from muster.spec.flags import long_flag
from muster.spec.model import FLAGS

JOB_FLAGS = {long_flag(field) for field, flag in FLAGS.items() if not flag.file_only and not flag.argument}
SAME_FOR_ALL = {"--help"}


def all_commands(group: click.Group = cli, words: tuple[str, ...] = ("muster",)) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, subcommands included."""
    context = click.Context(group, info_name=words[-1])
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*words, name)), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*words, name))


def is_job_option(option: click.Option) -> bool:
    return bool(JOB_FLAGS & set(option.opts))


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def spelling(option: click.Option) -> str:
    """Return all names of an option, and its value."""
    names = ", ".join(code(name) for name in [*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    return f"{names} {code(option.metavar or option.type.name.upper())}"


def description(option: click.Option) -> str:
    record = option.get_help_record(click.Context(click.Command("command")))
    return record[1] if record else ""


def _paragraphs(text: str | None) -> str:
    """Return a help text as Markdown: blocks that click does not wrap are code."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        kept = part.startswith("\b\n")
        parts.append(f"```text\n{part[2:]}\n```" if kept else " ".join(part.split()).replace("<", "&lt;"))
    return "\n\n".join(parts)


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    lines = [f"## {name}", f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"]
    lines.append(_paragraphs(command.help))
    listed = options(command)
    if sum(is_job_option(option) for option in listed) > len(JOB_FLAGS) // 2:
        listed = [option for option in listed if not is_job_option(option)]
        lines.append("It accepts the [job options](#job-options).")
    if listed:
        rows = [[spelling(option), description(option)] for option in listed]
        lines.append(table(("option", "meaning"), rows))
    return "\n\n".join(lines)


def _job_options() -> str:
    """Return the table of the job options, which several commands accept, by subject."""
    command = dict(all_commands())["muster run"]
    groups: dict[str, list[list[str]]] = {}
    for option in options(command):
        if is_job_option(option):
            groups.setdefault(getattr(option, "group", ""), []).append([spelling(option), description(option)])
    tables = [f"### {group} options\n\n{table(('option', 'meaning'), rows)}" for group, rows in groups.items()]
    text = "Options of `muster run`, and of every command that starts or checks a job. Each has a [field](job-file.md)."
    return "\n\n".join(["## Job options", text, *tables])


def page() -> str:
    """Return the text of the page."""
    introduction = (
        "Every command also accepts `-h` and `--help`, and `muster --version` prints the version. Commands with the "
        "options of a job show the most used ones with `--help`, and all with `--help-all`. The package installs the "
        "same text as manual pages: `man muster`, `man muster-run`.\n\n"
        "With `--json`, facts go to stdout as JSON, and an error goes to stderr as the last line: "
        '`{"error": {"message": "...", "exit_code": 2, "hint": "..."}}`, where `hint` is what to do, or null. '
        "With `NO_COLOR` in the environment, no command prints colours."
    )
    sections = [_section(name, command) for name, command in all_commands()]
    return "\n".join(
        [heading("Commands and options", introduction), *(f"{one}\n" for one in [*sections, _job_options()])]
    )
