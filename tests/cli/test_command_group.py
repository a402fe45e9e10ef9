"""Groups list the whole first sentence of each command."""

from __future__ import annotations

import click
import pytest

from muster.cli.command_group import CommandGroup, first_sentence

SENTENCE = "Show the state of all nodes and everything else that somebody may want to know about a cluster."


@pytest.mark.parametrize(
    ("help", "sentence"),
    [
        (f"{SENTENCE} More.", SENTENCE),
        ("Print export A=b for the shell: eval.\n\nMore.", "Print export A=b for the shell: eval."),
        ("Two\n    lines", "Two lines"),
        (None, ""),
    ],
)
def test_the_first_sentence_is_the_summary(help: str | None, sentence: str) -> None:
    assert first_sentence(click.Command("c", help=help)) == sentence


def test_a_long_summary_is_wrapped_and_a_hidden_command_left_out() -> None:
    group = CommandGroup("g", commands=[click.Command("a", help=SENTENCE), click.Command("b", help="B.", hidden=True)])
    text = group.get_help(click.Context(group))
    assert SENTENCE in " ".join(text.split()) and "  b " not in text
