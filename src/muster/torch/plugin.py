"""The entry point `torchrun.handlers`, by which torchrun finds Muster's rendezvous. It does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def handler_creator() -> Callable[[Any], Any]:
    """Return the function that creates the handler for `--rdzv-backend muster`."""
    from muster.torch.handler import create_handler  # deferred: it imports torch

    return create_handler
