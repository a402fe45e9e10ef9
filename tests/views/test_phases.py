"""The phase of a node in a given state, and how phases are shown."""

from __future__ import annotations

import pytest

from muster.views.phases import ALLOCATED, PHASE_STYLES, Phase, phase_of


@pytest.mark.parametrize(
    ("state", "role", "run_state", "driver", "served", "phase"),
    [
        ("expected", "active", "gathering", "waiting", True, Phase.LAUNCHING),
        ("arrived", "active", "gathering", "waiting", True, Phase.ARRIVED),
        ("arrived", "spare", "gathering", "waiting", True, Phase.ARRIVED),  # roles are not final yet
        ("arrived", "spare", "running", "running", True, Phase.SPARE),
        ("expected", "spare", "running", "running", True, Phase.LAUNCHING),
        ("starting", "active", "starting", "waiting", False, Phase.STARTING),
        ("ready", "active", "starting", "waiting", False, Phase.SERVICES),
        ("ready", "active", "starting", "waiting", True, Phase.JOINED),
        ("ready", "active", "running", "running", False, Phase.DRIVER),
        ("ready", "active", "finishing", "ended", True, Phase.FINISHING),
        ("ready", "waiting", "restarting", "waiting", True, Phase.FINISHING),
        ("stopping", "spare", "running", "running", True, Phase.FINISHING),
        ("gone", "active", "finishing", "ended", True, Phase.GONE),
        ("lost", "active", "running", "running", True, Phase.LOST),
        ("ready", "excluded", "running", "running", True, Phase.LOST),
        ("", "", "", "", True, Phase.LAUNCHING),
    ],
)
def test_the_phase_follows_from_state_role_run_and_driver(
    state: str, role: str, run_state: str, driver: str, served: bool, phase: Phase
) -> None:
    assert phase_of(state, role, run_state, driver, served) is phase


def test_phases_are_told_apart_without_colour_and_without_unicode() -> None:
    assert PHASE_STYLES.keys() == set(Phase)
    queued = (Phase.SUBMITTED, Phase.PENDING)  # both before the job starts: one sign
    for sign in ("glyph", "letter"):
        signs = [getattr(PHASE_STYLES[phase], sign) for phase in Phase if phase not in queued[:1]]
        assert len(set(signs)) == len(signs) and all(len(one) == 1 for one in signs)
    assert all(style.letter.isascii() for style in PHASE_STYLES.values())
    assert set(Phase) - set(ALLOCATED) == set(queued)
