"""Define the job spec and load it from settings, a job file, flags or Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from muster.errors import SpecError

if TYPE_CHECKING:
    from muster.spec.load import explain_job, load_job
    from muster.spec.model import JobSpec

__all__ = ["JobSpec", "SpecError", "explain_job", "load_job"]

# Imported when first used: the model and pydantic take a third of a second, and `muster status` needs neither.
_MODULES = {"JobSpec": "model", "explain_job": "load", "load_job": "load"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
