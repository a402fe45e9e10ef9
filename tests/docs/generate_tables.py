"""Write docs/reference/core.md, the tables of states, events, commands and messages, from the code that defines them,
and the table of languages in docs/reference/sandbox.md.

python -m tests.docs.reference
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from muster.agent.control.codec import MessageProtocol, field_types, wire_name
from muster.agent.control.messages import CONTROL_PROTOCOL
from muster.election.candidate import CandidacyEffect
from muster.election.follower import FollowerEffect
from muster.election.leader_lease import LeaseEffect
from muster.lifecycle import services
from muster.lifecycle.events import Command, Event
from muster.lifecycle.services import SERVICE_TRANSITIONS
from muster.lifecycle.states import NODE_TRANSITIONS, RUN_TRANSITIONS, NodeState, RunState
from muster.sandbox.engine.language_table import LANGUAGES
from muster.torch.messages import RENDEZVOUS_PROTOCOL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "core.md"
SANDBOX_PAGE = PAGE.with_name("sandbox.md")
LANGUAGES_BEGIN, LANGUAGES_END = "<!-- languages: generated -->", "<!-- end of languages -->"
INTRODUCTION = """# Reference of the core

This page is generated from the code by `python -m tests.docs.reference`; a test checks that it is current.
[architecture.md](../architecture.md) explains how the parts work together.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def documented_transitions(documentation: str) -> list[list[str]]:
    """Return the rows of the table `state, leaves on, to` in a docstring: columns are separated by two spaces."""
    rows = [re.split(r" {2,}", line.strip()) for line in inspect.cleandoc(documentation).splitlines()]
    start = rows.index(["state", "leaves on", "to"])
    found = [row for row in rows[start + 1 :] if row != [""]]
    assert found and all(len(row) == 3 for row in found), found
    return found


def states(documentation: str, transitions: Mapping[Any, frozenset[Enum]]) -> str:
    """Return both tables of a state machine: why a state is left, and every allowed transition."""
    order, allowed = list(transitions), []
    for state in order:
        after = ", ".join(f"`{other.value}`" for other in sorted(transitions[state], key=order.index))
        allowed.append([f"`{state.value}`", after or "(final)"])
    why = table(("state", "leaves on", "to"), documented_transitions(documentation))
    return f"{why}\n\n{table(('state', 'allowed next states'), allowed)}"


def messages(union: Any) -> str:
    """Return the table of the dataclasses in a union: name, fields and purpose."""
    rows = []
    for kind in get_args(union):
        names = ", ".join(f"`{field.name}: {field.type}`" for field in fields(kind))
        purpose = " ".join(inspect.cleandoc(kind.__doc__).split("\n\n")[0].split())
        rows.append([f"`{kind.__name__}`", names, purpose])
    return table(("name", "fields", "meaning"), rows)


def protocol_messages(protocol: MessageProtocol, server: str, client: str) -> str:
    """Return the table of a protocol's messages: name on the wire, direction, fields and purpose."""
    directions = (
        (protocol.greeting, f"{client}, in the handshake"),
        (protocol.server, server),
        (protocol.client, client),
    )
    rows = []
    for registry, direction in directions:
        for kind in registry.types:
            names = ", ".join(f"`{name}: {annotation}`" for name, annotation in field_types(kind).items())
            purpose = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
            rows.append([f"`{wire_name(kind)}`", direction, names, purpose])
    return f"Version {protocol.version}.\n\n{table(('name', 'direction', 'fields', 'meaning'), rows)}"


SECTIONS: dict[str, Callable[[], str]] = {
    "Run states": lambda: states(RunState.__doc__ or "", RUN_TRANSITIONS),
    "Node states": lambda: states(NodeState.__doc__ or "", NODE_TRANSITIONS),
    "Service states": lambda: states(services.__doc__ or "", SERVICE_TRANSITIONS),
    "Events": lambda: messages(Event),
    "Commands": lambda: messages(Command),
    "Effects of a follower's election": lambda: messages(FollowerEffect),
    "Effects of a candidacy": lambda: messages(CandidacyEffect),
    "Effects of the leader's lease": lambda: messages(LeaseEffect),
    "Control messages": lambda: protocol_messages(CONTROL_PROTOCOL, "leader to agent", "agent to leader"),
    "Messages of torchrun's rendezvous": lambda: protocol_messages(
        RENDEZVOUS_PROTOCOL, "coordinator to node", "node to coordinator"
    ),
}


def page() -> str:
    """Return the text of the page."""
    return "\n".join([INTRODUCTION, *(f"## {title}\n\n{section()}\n" for title, section in SECTIONS.items())])


def languages() -> str:
    """Return the table of the sandbox's languages."""
    rows = []
    for language in LANGUAGES:
        tools = language.toolchains
        compiling = [" ".join(tool.compile) for tool in tools if tool.compile]
        names = ", ".join(f"`{name}`" for name in (language.name, *language.aliases))
        packages = " or ".join(tool.packages for tool in tools if tool.packages)
        row = [
            names,
            f"`{language.file}`" if language.file else "",
            " or ".join(f"`{text}`" for text in compiling),
            " or ".join(dict.fromkeys(f"`{' '.join(tool.run)}`" for tool in tools)) or "the warm interpreter",
            packages or ("" if not tools else "none"),
            language.note,
        ]
        rows.append(
            [cell.replace("{name}", "NAME").replace("{file}", "FILE").replace("{code}", "CODE") for cell in row]
        )
    return table(("language", "FILE", "compile", "run", "packages of Debian 12, npm, PyPI", ""), rows)


def sandbox_page() -> str:
    """Return docs/reference/sandbox.md with the current table of languages."""
    before, _, rest = SANDBOX_PAGE.read_text(encoding="utf-8").partition(LANGUAGES_BEGIN)
    after = rest.partition(LANGUAGES_END)[2]
    return f"{before}{LANGUAGES_BEGIN}\n\n{languages()}\n\n{LANGUAGES_END}{after}"
