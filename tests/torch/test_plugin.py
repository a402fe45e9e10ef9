"""The entry point by which torchrun finds Muster's rendezvous."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

from tests.torch.conftest import needs_torch


def test_importing_the_entry_point_does_not_import_torch() -> None:
    """torchrun loads every entry point of this group, whichever backend it uses."""
    program = "import sys, muster.torch.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


def test_the_entry_point_is_declared_under_the_name_of_the_backend(entry_point: Path) -> None:
    (package,) = entry_point.glob("*.dist-info")
    (found,) = PathDistribution(package).entry_points.select(group="torchrun.handlers")
    assert (found.name, found.value) == ("muster", "muster.torch.plugin:handler_creator")


@needs_torch
def test_the_entry_point_returns_the_function_that_creates_handlers() -> None:
    from muster.torch.handler import create_handler
    from muster.torch.plugin import handler_creator

    assert handler_creator() is create_handler
