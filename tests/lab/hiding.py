"""A path that one node of the lab does not see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.conftest import SlurmCommand


@contextmanager
def hidden(slurm: SlurmCommand, node: str, path: Path) -> Iterator[None]:
    """On this node an empty filesystem lies over the path: as if it were not shared."""
    slurm.on_node(node, "mount", "-t", "tmpfs", "hidden", str(path))
    try:
        yield
    finally:
        slurm.on_node(node, "umount", str(path))
