"""The job's command, size, environment, container and deadlines: accepted and refused values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from muster.errors import SpecError
from muster.spec import JobSpec
from muster.spec.fields.job import CommandFields, ContainerFields, DeadlineFields, EnvironmentFields


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        (0.5, 0.5),
    ],
)
def test_durations_are_seconds_or_have_units(text: Any, seconds: float) -> None:
    assert job(gather_timeout=text).gather_timeout == seconds


@pytest.mark.parametrize("text", ["", "ten", "10x", "1m1h", "-1", "-5s", "1.2.3s", "nan", "inf", True, None, [1]])
def test_an_invalid_duration_is_refused(text: Any) -> None:
    with pytest.raises(SpecError):
        job(stop_grace=text)


def test_a_grace_period_may_be_zero_but_a_deadline_may_not() -> None:
    assert job(stop_grace=0).stop_grace == 0
    for field in ("gather_timeout", "start_timeout"):
        with pytest.raises(SpecError):
            job(**{field: 0})


@pytest.mark.parametrize(
    "text", ["ib0", "ib*,eth0", "eth0.5", "bond0:1", "10.1.0.0/16", "10.1.2.3", "fd77::/48", "fd77::1"]
)
def test_interfaces_are_kept_as_written(text: str) -> None:
    assert job(interface=text).interface == text


def test_a_command_may_have_quotes_newlines_and_substitutions() -> None:
    words = ["python", "-c", "print('a')\nprint(\"$(date)\")", "`x`", "", "--", "ünïcode"]

    assert job(command=words).command == words


def test_a_command_written_as_text_is_run_by_bash() -> None:
    assert job(command="cd x && python a.py > log").command == ["bash", "-c", "cd x && python a.py > log"]


def test_the_command_is_the_only_required_field() -> None:
    with pytest.raises(ValidationError, match="command"):
        CommandFields.model_validate({})
    assert CommandFields(command=["true"]).nodes == 1
    assert ContainerFields().container_runtime == "auto"
    assert EnvironmentFields().env == {}
    assert DeadlineFields().health_check is None


def test_an_empty_env_section_has_no_variables() -> None:
    assert EnvironmentFields.model_validate({"env": None}).env == {}


@pytest.mark.parametrize("field", ["idle_timeout", "stall_timeout"])
def test_a_timeout_is_off_by_default_and_cannot_be_zero(field: str) -> None:
    assert getattr(DeadlineFields(), field) is None
    assert getattr(DeadlineFields.model_validate({field: "30m"}), field) == 1800
    with pytest.raises(ValidationError, match="is not more than zero"):
        DeadlineFields.model_validate({field: 0})


@pytest.mark.parametrize("runtime", ["auto", "pyxis", "apptainer", "charliecloud"])
def test_the_supported_container_runtimes_are_accepted_and_no_other(runtime: str) -> None:
    assert ContainerFields.model_validate({"container_runtime": runtime}).container_runtime == runtime
    with pytest.raises(ValidationError):
        ContainerFields.model_validate({"container_runtime": runtime + "x"})


@pytest.mark.parametrize("field", ["setup", "health_check"])
def test_shell_code_may_have_several_lines_but_not_be_blank(field: str) -> None:
    assert getattr(job(**{field: "cd x\nmake"}), field) == "cd x\nmake"
    with pytest.raises(SpecError, match="is empty"):
        job(**{field: " \n"})


def test_zero_gpus_can_be_requested_but_not_zero_cpus() -> None:
    assert job(gpus_per_node=0).gpus_per_node == 0
    with pytest.raises(SpecError):
        job(cpus_per_node=0)


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("1G", 1 << 30), (2 << 20, 2 << 20), ("1M", 1 << 20)])
def test_a_log_may_have_any_size_or_no_limit(text: object, size: int) -> None:
    assert job(log_limit=text).log_limit == size
    assert job().log_limit == 1 << 30


@pytest.mark.parametrize("text", ["1", "100k", "-1", "big"])
def test_a_limit_that_no_log_keeps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="log_limit"):
        job(log_limit=text)


@pytest.mark.parametrize(
    "fields", [{"nodes": "3-4"}, {"nodes": 4, "min_nodes": 3}, {"nodes": "4", "min_nodes": "3"}, {"nodes": "03-4"}]
)
def test_a_range_of_nodes_is_two_numbers(fields: dict[str, Any]) -> None:
    spec = job(**fields)
    assert (spec.nodes, spec.min_nodes, spec.fewest_nodes, spec.has_surplus) == (4, 3, 3, True)


@pytest.mark.parametrize(
    ("fields", "surplus"), [({"nodes": 4}, False), ({"nodes": "4-4"}, False), ({"spares": 1}, True)]
)
def test_a_job_without_a_range_needs_all_of_its_nodes(fields: dict[str, Any], surplus: bool) -> None:
    spec = job(**fields)
    assert (spec.fewest_nodes, spec.has_surplus) == (spec.nodes, surplus)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"nodes": "4-3"}, "min_nodes: 4 is more than --nodes 3"),
        ({"nodes": "0-3"}, "min_nodes: '0' is not valid; allowed: a whole number, 1 or more"),
        ({"nodes": "3-"}, "nodes: '3-' is not valid; allowed: a whole number, 1 or more, or a range such as 3-4"),
        ({"nodes": "3-4", "min_nodes": 3}, "min_nodes: nodes is a range, 3-4; remove one of them"),
        ({"nodes": "2-4", "segment": 2}, "min_nodes: a job with --segment needs whole segments"),
        (
            {"groups": [{"name": "a", "nodes": 2}], "min_nodes": 1},
            "min_nodes: a job with groups needs all of its nodes",
        ),
    ],
)
def test_a_range_that_cannot_be_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        job(**fields)
    assert [text for text in refused.value.problems if text.startswith(problem)], refused.value.problems
