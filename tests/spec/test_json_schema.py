"""The JSON schema of the job file: it accepts what Muster accepts, and describes each field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.fenced import fenced_blocks

from muster.spec.json_schema import job_schema
from muster.spec.model import FLAGS

jsonschema = pytest.importorskip("jsonschema")
REPOSITORY = Path(__file__).parents[2]
SHOWN = [
    block
    for page in [
        *sorted((REPOSITORY / "docs" / "how-to").rglob("*.md")),
        *(REPOSITORY / "docs" / "tutorials").glob("*"),
    ]
    for block in fenced_blocks(page)
    if block.language == "yaml" and block.file_name != "config.yaml"
]


def problems(job: Any) -> list[str]:
    """Return what the schema says against a job that is parsed as an editor does."""
    validator = jsonschema.Draft202012Validator(job_schema())
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in validator.iter_errors(job)]


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(job_schema())


def test_every_field_is_described_and_no_other_is_allowed() -> None:
    schema = job_schema()
    assert schema["properties"].keys() == FLAGS.keys() and schema["additionalProperties"] is False
    assert all(
        schema["properties"][name]["description"] == f"{flag.help} Allowed: {flag.allowed}."
        for name, flag in FLAGS.items()
    )


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: f"{block.page.name}:{block.line}")
def test_the_job_files_of_the_documentation_are_valid(block: Any) -> None:
    assert problems(yaml.safe_load(block.text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "command: python train.py\ntime: 30\nname: 007\nnodes: '3'",
        "command: [sleep, 3, true]\nstop_grace: 1m\nobject_store_memory: 8G\nmem: 64G",
        "job-name: x\ncpus-per-node: 2\npartition:\nenv:\nsbatch:\n  requeue:",
        "requeue_on: timeout, node-fail\nexclusive: user\nray: false",
        "groups: [{name: a, nodes: 1, gpus_per_node: 8}]\nservices: {s: {command: x, scope: 2, ports: {http: auto}}}",
    ],
)
def test_values_may_be_written_as_in_a_job_file(text: str) -> None:
    assert problems(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("nodez: 1", ": "),
        ("nodes: 0", "nodes: "),
        ("nodes: [1]", "nodes: "),
        ("backend: pbs", "backend: "),
        ("services: {s: {comand: x}}", "services.s: "),
        ("groups: [{nodes: 1}]", "groups.0: "),
    ],
)
def test_mistakes_are_found(text: str, at: str) -> None:
    (problem,) = problems(yaml.safe_load(text))
    assert problem.startswith(at)
