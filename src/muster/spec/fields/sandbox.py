"""Check the settings of a sandbox service: names and types here; the node checks the values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from muster.sandbox.settings import ISOLATION, SandboxSettings

DECIDED_BY_AGENTS = frozenset({"host", "port", "listen", "token", "ready_file", "members_file"})
"""Settings that the agents decide."""

_TYPES: dict[str, Any] = {
    name: dict[str, str] if name == "env" else kind
    for name, kind in get_type_hints(SandboxSettings).items()
    if name not in DECIDED_BY_AGENTS
}


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the types that the sandbox reads from JSON; the job file has only text."""
    return {name: _setting(name, value) for name, value in given.items()}


def _setting(name: str, value: Any) -> Any:
    if name in DECIDED_BY_AGENTS:
        raise ValueError(f"has {name!r}, which the agents decide; `ports: {{http: ...}}` fixes the port")
    if name not in _TYPES:
        near = difflib.get_close_matches(name, _TYPES, n=1)
        hint = f" did you mean {near[0]}?" if near else ""
        raise ValueError(f"has {name!r}, which is not a setting of a sandbox;{hint} valid: {', '.join(sorted(_TYPES))}")
    try:
        found = TypeAdapter(_TYPES[name]).validate_python(value)
    except ValidationError:
        kind = getattr(_TYPES[name], "__name__", str(_TYPES[name]))
        raise ValueError(f"has {name}: {value!r}, which is not of the type {kind}") from None
    if name == "isolation" and found not in ISOLATION:
        raise ValueError(f"has isolation: {found!r}, which is not one of {', '.join(ISOLATION)}")
    return list(found) if isinstance(found, tuple) else found
