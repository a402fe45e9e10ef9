"""The types of fields: each has the validators that its name promises."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from muster.spec import types


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (types.Count, "3", 3),
        (types.CountOrZero, 0, 0),
        (types.Line, "a b", "a b"),
        (types.Word, "a\nb", "a\nb"),
        (types.ShellText, "cd x\nmake\n", "cd x\nmake\n"),
        (types.Seconds, "1m30s", 90.0),
        (types.Seconds, 0, 0.0),
        (types.Deadline, "0.5", 0.5),
        (types.Size, "1.5K", 1536),
        (types.EnvName, "_A1", "_A1"),
        (types.PassedValue, "", ""),
    ],
)
def test_a_valid_value_is_converted(kind: Any, given: object, kept: object) -> None:
    assert TypeAdapter(kind).validate_python(given) == kept


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (types.Count, 0),
        (types.Count, True),
        (types.CountOrZero, -1),
        (types.CountOrZero, False),
        (types.Line, ""),
        (types.Line, "a\nb"),
        (types.Word, "a\0b"),
        (types.ShellText, " \n"),
        (types.Seconds, "-1"),
        (types.Deadline, 0),
        (types.Size, 0),
        (types.Size, "1X"),
        (types.EnvName, "1A"),
        (types.PassedValue, "a\nb"),
    ],
)
def test_an_invalid_value_is_refused(kind: Any, given: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(given)
