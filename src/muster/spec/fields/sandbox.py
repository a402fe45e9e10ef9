"""What a job file may choose about a sandbox that runs as a service: names and types; the node judges the values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from muster.sandbox.settings import ISOLATION, SandboxSettings

OURS = frozenset({"host", "port", "listen", "token", "ready_file", "members_file"})
"""What the agents decide."""

_TYPES: dict[str, Any] = {
    name: dict[str, str] if name == "env" else kind
    for name, kind in get_type_hints(SandboxSettings).items()
    if name not in OURS
}


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """As the sandbox reads them from JSON; the job file has texts alone."""
    return {name: _setting(name, value) for name, value in given.items()}


def _setting(name: str, value: Any) -> Any:
    if name in OURS:
        raise ValueError(f"has {name!r}, which the agents decide; `ports: {{http: ...}}` fixes the port")
    if name not in _TYPES:
        near = difflib.get_close_matches(name, _TYPES, n=1)
        hint = f" did you mean {near[0]}?" if near else ""
        raise ValueError(f"has {name!r}, which is no setting of a sandbox;{hint} known: {', '.join(sorted(_TYPES))}")
    try:
        found = TypeAdapter(_TYPES[name]).validate_python(value)
    except ValidationError:
        kind = getattr(_TYPES[name], "__name__", str(_TYPES[name]))
        raise ValueError(f"has {name}: {value!r}, which is not of the type {kind}") from None
    if name == "isolation" and found not in ISOLATION:
        raise ValueError(f"has isolation: {found!r}, which is none of {', '.join(ISOLATION)}")
    return list(found) if isinstance(found, tuple) else found
