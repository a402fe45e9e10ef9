"""The option --json: facts as JSON on stdout, an error as one JSON object on stderr."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_requested: ContextVar[bool] = ContextVar("json_requested", default=False)
_SEE = re.compile(r" \((see `[^`]+`)\)$")
_QUESTION = re.compile(r"did you mean [^?]+\?", re.IGNORECASE)


def json_option(help: str, **more: Any) -> Callable[[F], F]:
    """Return the option --json with this help, which a command receives as `as_json`.

    It is processed before other options, so that errors about these are JSON as well.
    """
    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=_note_request, help=help, **more)


def _note_request(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    if value:
        _requested.set(True)
    return value


def forget_request() -> None:
    """Let errors be text again: a process may run several command lines."""
    _requested.set(False)


def json_requested(arguments: Sequence[str] = ()) -> bool:
    """Return whether the command has got --json; of a command line that was not parsed, whether the word is there."""
    words = list(arguments)
    return _requested.get() or "--json" in words[: words.index("--") if "--" in words else None]


def print_json(value: Any) -> None:
    """Print one line of JSON on stdout."""
    click.echo(json.dumps(value))


def as_text_or_base64(data: bytes) -> dict[str, str]:
    """Return bytes of a program's output for a JSON object: `text`, or `base64` if they are not UTF-8."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def error_record(problems: Sequence[str], exit_code: int) -> dict[str, Any]:
    """Return the JSON object of an error: its problems, one per line of the message, and what to do about the first."""
    message = "\n".join(_SEE.sub("", problem) for problem in problems)
    return {"error": {"message": message, "exit_code": exit_code, "hint": hint(problems[0]) if problems else None}}


def hint(problem: str) -> str | None:
    """Return what to do about a problem: errors end with it.

    >>> hint("unknown field 'nodez'; did you mean nodes?"), hint("--nodes: 0 is not valid; allowed: 1 or more")
    ('did you mean nodes?', 'allowed: 1 or more')
    """
    if question := _QUESTION.search(problem):
        return question[0]
    text = _SEE.sub("", problem)
    _, semicolon, last = text.rpartition("; ")
    if semicolon:
        return last
    see = _SEE.search(problem)
    return see[1] if see else None
