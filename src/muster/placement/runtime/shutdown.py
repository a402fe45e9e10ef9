"""Stop actors that own programs, all in parallel: gracefully, then forcibly, then by killing the actor."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray

SIGTERM_WAIT_S = 10.0
SIGKILL_WAIT_S = 5.0
ANSWER_MARGIN_S = 5.0  # for the answer, beyond the program's grace period

Labelled = tuple[str, Any]  # a label, which need not be unique, and an actor's handle


def graceful_stop_actors(actors: Sequence[Labelled], *, timeout_s: float | None = None) -> list[str]:
    """Stop actors in parallel: each program gets TERM, `timeout_s` seconds, then KILL; then the actor is killed.

    An actor that cannot be reached does not delay the others. Return the labels of those that did not answer: their
    supervisors kill their programs once the actor is gone.
    """
    grace = SIGTERM_WAIT_S if timeout_s is None else timeout_s
    asked = [(each, _call(each[1], "stop", grace)) for each in actors]
    silent = _unanswered(asked, grace + ANSWER_MARGIN_S)
    forced = [(each, _call(each[1], "force_sigkill_subprocess")) for each in silent]
    silent = _unanswered(forced, SIGKILL_WAIT_S)
    for _, actor in actors:
        with contextlib.suppress(Exception):  # dead already, for which Ray raises several types
            ray.kill(actor, no_restart=True)
    return [label for label, _ in silent]


def _call(actor: Any, method: str, *arguments: Any) -> Any:
    """Call a method and return the reference of its result; None if the call could not be sent."""
    try:
        return getattr(actor, method).remote(*arguments)
    except Exception:  # a handle of a former connection fails in several ways
        return None


def _unanswered(asked: Sequence[tuple[Labelled, Any]], seconds: float) -> list[Labelled]:
    """Return the actors that did not answer in time. A dead actor counts as answered: nothing has to be forced."""
    refs = [ref for _, ref in asked if ref is not None]
    done = ray.wait(refs, num_returns=len(refs), timeout=seconds)[0] if refs else []
    return [each for each, ref in asked if ref not in done]
