"""The name by which torchrun knows Muster's rendezvous, and the way to it: the entry point of `torchrun.handlers`.

Importing this costs nothing; torch has been imported by whoever calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BACKEND = "muster"


def handler_creator() -> Callable[[Any], Any]:
    """For `--rdzv-backend muster`."""
    from muster.torch.handler import create_handler

    return create_handler
