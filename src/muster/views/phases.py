"""The phases of a node: their names, their styles, and the phase of a node in a given state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(str, Enum):
    """The phases in the order in which a node passes through them; docs/explanation/views.md has the transitions."""

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
class PhaseStyle:
    """How a phase is shown: as text, as a sign that is distinct without colour, and in a colour (rich's name)."""

    title: str
    meaning: str
    glyph: str
    letter: str  # replaces the glyph on terminals without Unicode
    colour: str


PHASE_STYLES = {
    Phase.SUBMITTED: PhaseStyle("submitted", "the job is being submitted", "\N{MIDDLE DOT}", ".", "bright_black"),
    Phase.PENDING: PhaseStyle("pending", "the job waits in the queue", "\N{MIDDLE DOT}", ".", "bright_black"),
    Phase.LAUNCHING: PhaseStyle("launching", "its agent is starting", "\N{WHITE CIRCLE}", "o", "yellow"),
    Phase.ARRIVED: PhaseStyle(
        "arrived", "waits for other nodes or for the head", "\N{CIRCLE WITH LEFT HALF BLACK}", "a", "cyan"
    ),
    Phase.STARTING: PhaseStyle(
        "Ray starting", "starts its part of Ray", "\N{CIRCLE WITH UPPER HALF BLACK}", "r", "magenta"
    ),
    Phase.SERVICES: PhaseStyle("services", "waits for its services", "\N{FISHEYE}", "v", "bright_magenta"),
    Phase.JOINED: PhaseStyle("joined", "ready, waits for the others", "\N{BLACK CIRCLE}", "j", "blue"),
    Phase.DRIVER: PhaseStyle("driver", "the driver runs", "\N{BLACK SQUARE}", "D", "green"),
    Phase.SPARE: PhaseStyle("spare", "waits to replace a lost node", "\N{WHITE SQUARE}", "s", "bright_blue"),
    Phase.FINISHING: PhaseStyle(
        "finishing", "stops its processes", "\N{WHITE DOWN-POINTING TRIANGLE}", "f", "bright_yellow"
    ),
    Phase.LOST: PhaseStyle("lost", "failed or was lost", "\N{MULTIPLICATION X}", "X", "red"),
    Phase.GONE: PhaseStyle("gone", "stopped; others are still stopping", "\N{EN DASH}", "-", "bright_black"),
}

ALLOCATED = tuple(phase for phase in Phase if phase not in (Phase.SUBMITTED, Phase.PENDING))


def phase_of(state: str, role: str, run_state: str, driver: str, served: bool = True) -> Phase:
    """Return the phase of a node in this state and role; `driver` is waiting, running or ended.

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
        return Phase.FINISHING  # of this cycle; the leader's stop message follows
    if state == "ready":
        waits = Phase.JOINED if served else Phase.SERVICES
        return {"running": Phase.DRIVER, "ended": Phase.FINISHING}.get(driver, waits)
    return {"arrived": Phase.ARRIVED, "starting": Phase.STARTING}.get(state, Phase.LAUNCHING)
