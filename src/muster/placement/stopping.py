"""The end of actors that own programs, all at once: asked, then forced, then killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import ray

SIGTERM_WAIT_S = 10.0
SIGKILL_WAIT_S = 5.0
ANSWER_S = 5.0  # for the answer to come, beyond what the program was given


def graceful_stop_actors(actors: Sequence[tuple[str, Any]], *, timeout_s: float | None = None) -> list[str]:
    """Stop many in parallel: each program gets TERM and up to `timeout_s`; then KILL; then the actor is killed.

    One that cannot be reached does not keep the others from being stopped. Returns the labels of those that did not
    answer: their keepers end what they own once the actor is gone.
    """
    grace = SIGTERM_WAIT_S if timeout_s is None else timeout_s
    asked = {label: _ask(actor, "stop", grace) for label, actor in actors}
    silent = _unanswered(asked, time.monotonic() + grace + ANSWER_S)
    handles = dict(actors)
    forced = {label: _ask(handles[label], "force_sigkill_subprocess") for label in silent}
    silent = _unanswered(forced, time.monotonic() + SIGKILL_WAIT_S)
    for _, actor in actors:
        with contextlib.suppress(Exception):  # dead already: Ray has many ways to say so
            ray.kill(actor, no_restart=True)
    return silent


def _ask(actor: Any, method: str, *arguments: Any) -> Any:
    """The reference of the answer; None when the call could not even be sent."""
    try:
        return getattr(actor, method).remote(*arguments)
    except Exception:  # a handle of a former connection fails in several ways
        return None


def _unanswered(asked: dict[str, Any], deadline: float) -> list[str]:
    """Whose answer did not come in time. A dead actor is no answer, but there is nothing to be forced either."""
    waiting = {ref: label for label, ref in asked.items() if ref is not None}
    refs = list(waiting)
    if refs:
        done, _ = ray.wait(refs, num_returns=len(refs), timeout=max(0.0, deadline - time.monotonic()))
        for ref in done:
            del waiting[ref]
    return [label for label, ref in asked.items() if ref is None] + list(waiting.values())
