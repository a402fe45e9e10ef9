"""Problems of a file get the line of the field that they name."""

from __future__ import annotations

import pytest

from muster.spec.file_lines import normalized_lines, with_line

LINES = {"job.yaml": {"nodes": 1, "services": 3, "services.a": 4, "groups.0": 7, "groups.0.nodes": 8, "command.1": 9}}


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ("job.yaml: nodes: 0 is not valid", 1),
        ("job.yaml: services.a: has no command", 4),
        ("job.yaml: services.a.scope: 'x' is not valid", 4),
        ("job.yaml: services.b.scope: 'x' is not valid", 3),
        ("job.yaml: groups, group 1: the field name is missing", 7),
        ("job.yaml: groups, group 1, nodes: 0 is not valid", 8),
        ("job.yaml: command, word 2: is not valid", 9),
    ],
)
def test_the_line_is_that_of_the_innermost_key_that_is_known(problem: str, line: int) -> None:
    assert with_line(problem, LINES) == problem.replace("job.yaml: ", f"job.yaml:{line}: ")


@pytest.mark.parametrize(
    "problem", ["--nodes: 0 is not valid", "job.yaml: other: is not valid", "job.yaml:2: nodes: x", "no command to run"]
)
def test_other_problems_stay_as_they_are(problem: str) -> None:
    assert with_line(problem, LINES) == problem


def test_keys_are_known_by_their_field_also_in_a_profile() -> None:
    names = {"job_name": "name"}
    lines = {"job-name": 1, "cpus-per-node": 2, "env.A-b": 3, "profiles.gpu.job_name": 4, "profiles.gpu": 5}
    assert normalized_lines(lines, names) == {
        "name": 1,
        "cpus_per_node": 2,
        "env.A-b": 3,
        "profiles.gpu.name": 4,
        "profiles.gpu": 5,
    }
