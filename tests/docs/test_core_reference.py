"""The tables of states, events, commands, messages and languages are complete; test_reference.py compares the pages."""

from __future__ import annotations

import pytest
from tests.docs.generate_tables import documented_transitions, page, sandbox_page

from muster.lifecycle.events import StopNode
from muster.lifecycle.states import RunState


def test_every_language_is_on_the_page() -> None:
    assert "| `typescript`, `ts` | `main.ts` |" in sandbox_page()


def test_every_state_and_command_is_on_the_page() -> None:
    text = page()
    assert all(f"| `{state.value}` |" in text for state in RunState)
    assert f"| `{StopNode.__name__}` | `node_index: int`" in text


def test_a_malformed_table_in_a_docstring_is_an_error() -> None:
    assert documented_transitions("state  leaves on  to\none  an event  two") == [["one", "an event", "two"]]
    with pytest.raises(AssertionError):
        documented_transitions("state  leaves on  to\none  an event two")
