"""The end of actors that own programs, all at once: asked, then forced, then killed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray

SIGTERM_WAIT_S = 10.0
SIGKILL_WAIT_S = 5.0
ANSWER_S = 5.0  # for the answer to come, beyond what the program was given

Labelled = tuple[str, Any]  # an actor's handle, and what it is called; two may be called alike


def graceful_stop_actors(actors: Sequence[Labelled], *, timeout_s: float | None = None) -> list[str]:
    """Stop many in parallel: each program gets TERM and up to `timeout_s`; then KILL; then the actor is killed.

    One that cannot be reached does not keep the others from being stopped. Returns the labels of those that did not
    answer: their supervisors end what they own once the actor is gone.
    """
    grace = SIGTERM_WAIT_S if timeout_s is None else timeout_s
    asked = [(each, _ask(each[1], "stop", grace)) for each in actors]
    silent = _unanswered(asked, grace + ANSWER_S)
    forced = [(each, _ask(each[1], "force_sigkill_subprocess")) for each in silent]
    silent = _unanswered(forced, SIGKILL_WAIT_S)
    for _, actor in actors:
        with contextlib.suppress(Exception):  # dead already: Ray has many ways to say so
            ray.kill(actor, no_restart=True)
    return [label for label, _ in silent]


def _ask(actor: Any, method: str, *arguments: Any) -> Any:
    """The reference of the answer; None when the call could not even be sent."""
    try:
        return getattr(actor, method).remote(*arguments)
    except Exception:  # a handle of a former connection fails in several ways
        return None


def _unanswered(asked: Sequence[tuple[Labelled, Any]], seconds: float) -> list[Labelled]:
    """Whose answer did not come in time. A dead actor is no answer, but there is nothing to be forced either."""
    refs = [ref for _, ref in asked if ref is not None]
    done = ray.wait(refs, num_returns=len(refs), timeout=seconds)[0] if refs else []
    return [each for each, ref in asked if ref not in done]
