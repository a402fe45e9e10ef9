"""Lists of host names as a short text."""

from __future__ import annotations

import pytest

from muster.views.hosts import folded


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["gpu-01.x", "gpu-02.x"], "gpu-[01-02].x"),
        (["login", "n1"], "login,n1"),
        (["n[1-9999999]", "n1"], "n[1-9999999], n1"),  # would expand to millions of names
        (["n1", "\x1b[2Jn2"], "n1, \N{REPLACEMENT CHARACTER}[2Jn2"),
        (["@all"], "@all"),
    ],
)
def test_names_with_other_characters_are_listed_and_others_folded(hosts: list[str], text: str) -> None:
    assert folded(hosts) == text
    assert folded(iter(hosts)) == text
