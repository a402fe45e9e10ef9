"""A group of commands whose help shows the whole summary of each command."""

from __future__ import annotations

import inspect
import re

import click


class CommandGroup(click.Group):
    """A group whose list of commands has the first sentence of each command's help: click cuts it at 45 characters."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(one)) for name, one in commands if one and not one.hidden])


def first_sentence(command: click.Command) -> str:
    """Return the first sentence of the command's help, on one line."""
    paragraph = inspect.cleandoc(command.help or "").partition("\n\n")[0]
    return re.split(r"(?<=\.)\s", " ".join(paragraph.split()), maxsplit=1)[0]
