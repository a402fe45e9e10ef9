"""Messages about an invalid job: one line each, with origin, value and what is allowed, and without secrets."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from muster.spec import JobSpec
from muster.spec.errors import NO_COMMAND, explain, show
from muster.spec.model import FLAGS


def explained(origins: dict[str, str] | None = None, **fields: Any) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(fields)
    return explain(refused.value, FLAGS, origins or {})


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "nothing"), ("a\nb", r"'a\nb'"), (3, "3"), ([["a", ["b", ["c"]]]], "[['a', [...]]]")]
)
def test_a_value_is_shown_on_one_line(value: object, shown: str) -> None:
    assert show(value) == shown


def test_a_long_value_is_shortened_and_a_secret_is_not_shown() -> None:
    assert len(show("x" * 5000)) <= 80
    assert "hunter22" not in show("API_TOKEN=hunter22hunter22")


def test_a_line_has_the_origin_the_value_and_what_is_allowed() -> None:
    assert explained({"nodes": "--nodes"}, command=["a"], nodes="0") == [
        "--nodes: '0' is not valid; allowed: a whole number, 1 or more, or a range such as 3-4"
    ]
    assert explained(command=["a"], name="a/b") == [
        "name: 'a/b' contains a slash; allowed: 1 to 64 characters on one line, no slash"
    ]


def test_a_word_of_the_command_is_named_by_its_place() -> None:
    (line,) = explained({"command": "job.yaml: command"}, command=["python", "a\0b"])
    assert line.startswith(r"job.yaml: command, word 2: 'a\x00b' contains a NUL byte; allowed:")


def test_an_entry_has_its_own_origin() -> None:
    (line,) = explained({"env.1A": "--env 1A", "env": "--env"}, command=["a"], env={"1A": "x"})
    assert line.startswith("--env 1A: '1A' is not the name of an environment variable; allowed: NAME=VALUE")


def test_the_value_of_a_variable_that_looks_secret_is_hidden() -> None:
    (line,) = explained(command=["a"], env={"API_TOKEN": ["hunter22"]})
    assert line.startswith("env.API_TOKEN: ") and "hunter22" not in line


def test_a_missing_command_is_explained_with_an_example() -> None:
    assert explained() == [NO_COMMAND]


def test_a_problem_of_several_fields_is_reported_as_the_model_words_it() -> None:
    assert explained(command=["a"], on_node_loss="replace") == [
        "on_node_loss: replace needs a spare node; give --spares, or choose restart"
    ]


def test_a_field_of_a_service_is_named_by_its_full_path() -> None:
    services = {"judge": {"command": "x", "restart": "often", "comand": "y"}}
    lines = explained({"services": "job.yaml: services"}, command=["a"], services=services)
    assert lines[0] == ("job.yaml: services.judge.restart: 'often' is not valid; allowed: never, on-failure or always")
    assert lines[1].startswith("job.yaml: services.judge.comand: is not a field of a service; did you mean command?")


def test_equal_lines_are_reported_once() -> None:
    services = {"judge": {"command": "x", "scope": "some"}}  # one problem for each alternative of the type
    lines = explained(command=["a"], services=services)
    assert len(lines) == len(set(lines)) == 1
