"""The phases of a node: which there are, what each is called, and which one a node is in. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(str, Enum):
    """In the order in which a node goes through them; docs/seeing.md has the table of what begins each."""

    SUBMITTED = "submitted"
    PENDING = "pending"
    LAUNCHING = "launching"
    ARRIVED = "arrived"
    STARTING = "starting"
    SERVICES = "services"
    JOINED = "joined"
    DRIVER = "driver"
    SPARE = "spare"
    FINISHING = "finishing"
    LOST = "lost"
    GONE = "gone"


@dataclass(frozen=True)
class Look:
    """How a phase is shown: in words, and by a sign that does without colour. The colour is rich's name for it."""

    title: str
    meaning: str
    glyph: str
    letter: str  # where there is no Unicode
    colour: str


LOOKS = {
    Phase.SUBMITTED: Look("submitted", "the job is handed over", "\N{MIDDLE DOT}", ".", "bright_black"),
    Phase.PENDING: Look("pending", "the job waits in the queue", "\N{MIDDLE DOT}", ".", "bright_black"),
    Phase.LAUNCHING: Look("launching", "its agent is being started", "\N{WHITE CIRCLE}", "o", "yellow"),
    Phase.ARRIVED: Look("arrived", "waits for others, or for the head", "\N{CIRCLE WITH LEFT HALF BLACK}", "a", "cyan"),
    Phase.STARTING: Look("Ray starting", "starts its part of Ray", "\N{CIRCLE WITH UPPER HALF BLACK}", "r", "magenta"),
    Phase.SERVICES: Look("services", "waits for services of its own", "\N{FISHEYE}", "v", "bright_magenta"),
    Phase.JOINED: Look("joined", "ready, waits for the rest", "\N{BLACK CIRCLE}", "j", "blue"),
    Phase.DRIVER: Look("driver", "the driver runs", "\N{BLACK SQUARE}", "D", "green"),
    Phase.SPARE: Look("spare", "waits to stand in", "\N{WHITE SQUARE}", "s", "bright_blue"),
    Phase.FINISHING: Look("finishing", "ends its part", "\N{WHITE DOWN-POINTING TRIANGLE}", "f", "bright_yellow"),
    Phase.LOST: Look("lost", "failed or was lost", "\N{MULTIPLICATION X}", "X", "red"),
    Phase.GONE: Look("gone", "clean; others are not yet", "\N{EN DASH}", "-", "bright_black"),
}

ALLOCATED = tuple(phase for phase in Phase if phase not in (Phase.SUBMITTED, Phase.PENDING))


def phase_of(state: str, role: str, run_state: str, driver: str, served: bool = True) -> Phase:
    """The phase of a node of this state and role, in a run of this state whose driver is waiting, running or ended.

    `served` is whether every service that the driver waits for on this node is ready.

    >>> phase_of("ready", "active", "running", "running").value
    'driver'
    """
    if role == "excluded" or state in ("failed", "lost"):
        return Phase.LOST
    if state in ("stopping", "gone"):
        return Phase.FINISHING if state == "stopping" else Phase.GONE
    if role == "spare" and state != "expected" and run_state in ("starting", "running", "restarting"):
        return Phase.SPARE
    if state == "ready" and role == "waiting":
        return Phase.FINISHING  # for the next cycle: its word to stop follows
    if state == "ready":
        waits = Phase.JOINED if served else Phase.SERVICES
        return {"running": Phase.DRIVER, "ended": Phase.FINISHING}.get(driver, waits)
    return {"arrived": Phase.ARRIVED, "starting": Phase.STARTING}.get(state, Phase.LAUNCHING)
