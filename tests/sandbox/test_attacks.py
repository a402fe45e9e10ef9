"""The attack suite: every attack has the result that docs/reference/sandbox-attacks.md says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sandbox.attack_table import COLUMNS, documented, render
from tests.sandbox.attacks import ATTACKS, LIMITS, OPEN, Attack, Target
from tests.sandbox.conftest import EVERY_LEVEL, GVISOR_LEVELS, serve_at


@pytest.fixture(scope="module", params=(*EVERY_LEVEL, *GVISOR_LEVELS))
def target(request: pytest.FixtureRequest) -> Iterator[tuple[str, Target]]:
    made = Target(lambda shown: serve_at(request.param, read_only=[shown], **LIMITS))
    yield request.param, made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.text)
def test_an_attack_has_the_result_that_the_table_says(target: tuple[str, Target], attack: Attack) -> None:
    level, at = target
    assert at.attack(attack) == documented()[attack.text][level]


def test_the_table_has_every_attack_and_every_level() -> None:
    results = documented()
    assert set(results) == {attack.text for attack in ATTACKS}
    assert all(set(row) == set(COLUMNS) for row in results.values())
    assert render(results)


def test_the_suite_notices_attacks_that_succeed() -> None:
    assert OPEN in {row["process"] for row in documented().values()}
    assert OPEN not in {row[level] for row in documented().values() for level in COLUMNS if level != "process"}
