"""The node's memory, and the limit of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.sandbox import node_memory


def test_the_node_has_memory_of_which_a_part_is_available() -> None:
    assert 0 < node_memory.available_bytes() <= node_memory.total_bytes()
    assert node_memory.default_total_mb() >= 256 and 64 <= node_memory.default_reserve_mb() <= 2048


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"memory.max": "1000000", "memory.current": "900000", "memory.stat": "anon 1\ninactive_file 50000\n"},
            150_000,
        ),
        ({"memory.limit_in_bytes": "1000000", "memory.usage_in_bytes": "400000"}, 600_000),
    ],
)
def test_a_container_s_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(node_memory, "_own_memory_cgroups", lambda: [str(tmp_path)])
    assert node_memory.available_bytes() == expected and node_memory.total_bytes() == 1_000_000


def test_a_group_without_a_limit_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    monkeypatch.setattr(node_memory, "_own_memory_cgroups", lambda: [str(tmp_path)])
    assert node_memory.total_bytes() > 1_000_000
