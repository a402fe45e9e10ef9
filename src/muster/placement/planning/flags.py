"""Convert engine options to command-line flags. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def engine_kwargs_to_cli_flags(options: Mapping[str, Any]) -> list[str]:
    """Return the command-line flags for options with Python names; None and False omit a flag.

    >>> engine_kwargs_to_cli_flags({"max_model_len": 8192, "enforce_eager": True, "names": ["a", "b"], "seed": None})
    ['--max-model-len', '8192', '--enforce-eager', '--names', '["a", "b"]']
    """
    flags: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        flags.append(f"--{name.replace('_', '-')}")
        if value is not True:
            flags.append(json.dumps(value) if isinstance(value, (list, tuple, dict)) else str(value))
    return flags
