"""The shape of JSON values: which keys there are and of which types, without the values themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Shape = Any  # a dict of shapes, a one-element list of the shape of all its elements, or "int|null"


def shape(value: Any) -> Shape:
    """Return the shape of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [merge_all([shape(entry) for entry in value])] if value else []
    return {bool: "bool", int: "number", float: "number", str: "string", type(None): "null"}[type(value)]


def merge_all(shapes: list[Shape]) -> Shape:
    merged = shapes[0]
    for other in shapes[1:]:
        merged = merge(merged, other)
    return merged


def merge(a: Shape, b: Shape) -> Shape:
    """Return the shape that admits what either admits. A key that only one of them has gets a question mark."""
    if a == b:
        return a
    if isinstance(a, dict) and isinstance(b, dict):
        return _merge_keys(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return [merge_all([*a, *b])] if a or b else []
    alternatives = {*_alternatives(a), *_alternatives(b)}
    return "|".join(sorted(alternatives))


def _merge_keys(a: dict[str, Shape], b: dict[str, Shape]) -> dict[str, Shape]:
    merged: dict[str, Shape] = {}
    for name in dict.fromkeys(key.rstrip("?") for key in [*a, *b]):
        sides = [side.get(name, side.get(f"{name}?")) for side in (a, b)]
        present = [side for side in sides if side is not None]
        always = name in a and name in b
        merged[name if always else f"{name}?"] = merge_all(present)
    return merged


def _alternatives(a: Shape) -> list[str]:
    """Scalars by name; an object or a list beside a scalar is written as JSON."""
    return a.split("|") if isinstance(a, str) and not a.startswith(("{", "[")) else [json.dumps(a, sort_keys=True)]


class Golden:
    """A recorded format in tests/formats/golden; `pytest --golden` records it again."""

    def __init__(self, name: str, record: bool) -> None:
        self._path, self._record = Path(__file__).parent / "golden" / f"{name}.json", record

    def admits(self, observed: Any) -> None:
        """Assert that nothing was observed that the recorded shapes do not admit, and that no entry is missing."""
        known = json.loads(self._path.read_text()) if self._path.exists() else None
        if self._record:
            merged = observed if known is None else merge(known, observed)
            self._path.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n")
            return
        assert known is not None, f"{self._path.name} is missing; record it with pytest --golden"
        assert sorted(name for name in known if not name.endswith("?")) == sorted(
            name for name in observed if f"{name}?" not in known
        ), f"the entries of {self._path.name} have changed"
        for name, found in observed.items():
            expected = known.get(name, known.get(f"{name}?"))
            assert merge(expected, found) == expected, f"{name!r} in {self._path.name} has changed"
