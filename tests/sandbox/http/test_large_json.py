"""Large JSON is read and written in slices, with the results of the standard library."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from muster.sandbox.http import large_json

ALPHABET = ["a", "\\", '"', "\n", "é", "\U0001f600", "\0", "/", "u", "d83d", "中"]
SURROGATES = ["\ud83d", "\ude00"]


def random_text(rng: random.Random, length: int, alphabet: list[str]) -> str:
    return "".join(rng.choices(alphabet, k=length))


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_values_are_those_of_the_standard_library(monkeypatch: pytest.MonkeyPatch, ensure_ascii: bool) -> None:
    monkeypatch.setattr(large_json, "SLICE", 16)
    monkeypatch.setattr(large_json, "LONG_STRING", 8)
    rng = random.Random(1)
    letters = [*ALPHABET, *SURROGATES] if ensure_ascii else ALPHABET  # surrogates need escapes
    for _ in range(300):
        value: dict[str, Any] = {
            random_text(rng, 20, letters): random_text(rng, rng.randrange(200), letters),
            "list": [random_text(rng, 50, letters), 1, None, {"x": random_text(rng, 3, letters)}],
        }
        data = json.dumps(value, ensure_ascii=ensure_ascii).encode()
        expected = json.loads(data)
        assert large_json.load(data) == expected
        assert json.loads(large_json.dump(expected)) == json.loads(json.dumps(expected))


def test_runs_of_backslashes_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "SLICE", 16)
    for length in range(900, 1100):
        text = "x" * (length % 7) + "\\" * length + '"' + "\U0001f600" * 30
        assert large_json.load(json.dumps([text] * 3).encode()) == [text] * 3


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": "' + b"x" * 5000,
        b'"' + b"x" * 5000 + b'" 1',
        b'"' + b"x" * 5000 + b'\\q"',
        b'"' + b"x" * 5000 + b'\n"',
        b'"\xff' + b"x" * 5000 + b'"',
        b"[" * 200_000,
        b"[" + b"1," * 300_000 + b"1]",
        b'"' * 4_000_001,
        b" " * (5 << 20) + b"1",
    ],
    ids=["no end", "more", "escape", "control", "utf-8", "deep", "values", "quotes", "space"],
)
def test_documents_that_are_not_json_or_have_too_many_values_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        large_json.load(data)
