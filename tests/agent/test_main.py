"""The entry points of the agent's archive."""

from __future__ import annotations

import importlib

import pytest

from muster.agent.main import OTHER_ENTRIES


@pytest.mark.parametrize("entry", OTHER_ENTRIES)
def test_every_entry_point_of_the_archive_has_a_module_with_a_main(entry: str) -> None:
    assert callable(importlib.import_module(OTHER_ENTRIES[entry]).main)
