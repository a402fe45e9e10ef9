"""Templates are rendered only with exactly the values that they name."""

from __future__ import annotations

import pytest

from muster.launch.templates import render_template

VALUES = {"CAUSES": "timeout", "MAX_REQUEUES": "3", "CHAIN": "1", "AVOID": "true"}


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"requeue.sh: no value for \['CHAIN'\], no placeholder for \[\]"):
        render_template("requeue.sh", **{name: VALUES[name] for name in ("CAUSES", "MAX_REQUEUES", "AVOID")})


def test_an_unknown_value_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"requeue.sh: no value for \[\], no placeholder for \['MOST'\]"):
        render_template("requeue.sh", **VALUES, MOST="3")


def test_the_header_of_a_template_is_not_rendered() -> None:
    assert "shellcheck" not in render_template("requeue.sh", **VALUES)


def test_a_value_may_contain_the_placeholder_of_another() -> None:
    text = render_template("pyxis_prepare.sh", CONTAINER_NAME="__OUTSIDE_VARIABLES__", OUTSIDE_VARIABLES="A B")
    assert "container=__OUTSIDE_VARIABLES__\nunset A B" in text


def test_an_empty_value_removes_the_line_of_its_placeholder() -> None:
    values = {"HOST_VARIABLE": "H", "NO_CONTAINER": "1", "OUTSIDE_VARIABLES": "A"}
    assert "shift 2\ncommand -v" in render_template("container_entry.sh", **values, HEARTBEAT="")
    assert "shift 2\nbeat\ncommand -v" in render_template("container_entry.sh", **values, HEARTBEAT="beat")
