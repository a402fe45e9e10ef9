"""What users and running jobs rely on: files of the run directory, status, events, control messages, variables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.formats.conftest import RecordedRun
from tests.formats.shape import Golden, merge_all, shape

Recorded = Callable[[str], Golden]
OURS = re.compile(r"MUSTER_|RAY_|MASTER_|TORCHELASTIC_|OMP_|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$")


def files(directory: Path) -> dict[str, str]:
    """Return the mode of every file and directory below, by its path with numbers of nodes and times taken out."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = re.sub(r"^output/.*", "output/*", str(path.relative_to(directory)))
        found[re.sub(r"(cycle-0/)?ray/.*", r"\1ray/*", name)] = f"{path.stat().st_mode & 0o7777:o}"
    return found


def by_name(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the merged shape of the entries of each kind."""
    kinds: dict[str, list[Any]] = {}
    for entry in entries:
        kinds.setdefault(str(entry[name]), []).append(shape(entry))
    return {kind: merge_all(shapes) for kind, shapes in kinds.items()}


@pytest.fixture(params=["gang", pytest.param("ray", marks=pytest.mark.ray)])
def recorded(request: pytest.FixtureRequest) -> tuple[str, RecordedRun]:
    return request.param, request.getfixturevalue(f"{request.param}_run")


def test_a_run_directory_has_the_recorded_files(recorded: tuple[str, RecordedRun], golden: Recorded) -> None:
    kind, run = recorded
    golden(f"{kind}-files").admits(files(run.directory))


def test_status_json_has_the_recorded_keys(recorded: tuple[str, RecordedRun], golden: Recorded) -> None:
    kind, run = recorded
    golden(f"{kind}-status").admits(shape(run.status))


def test_events_have_the_recorded_keys(recorded: tuple[str, RecordedRun], golden: Recorded) -> None:
    kind, run = recorded
    golden(f"{kind}-events").admits(by_name(run.events, "event"))


def test_control_messages_have_the_recorded_fields(recorded: tuple[str, RecordedRun], golden: Recorded) -> None:
    kind, run = recorded
    entries = [{**entry["message"], "type": f"{entry['from']}: {entry['message']['type']}"} for entry in run.messages]
    golden(f"{kind}-messages").admits(by_name(entries, "type"))


@pytest.mark.parametrize("process", ["rank", "web"])
def test_processes_of_a_gang_run_have_the_recorded_variables(
    gang_run: RecordedRun, golden: Recorded, process: str
) -> None:
    variables = gang_run.environment(process)
    golden(f"{process}-variables").admits({name: "string" for name in variables if OURS.match(name)})


@pytest.mark.ray
def test_the_driver_of_a_ray_run_has_the_recorded_variables(ray_run: RecordedRun, golden: Recorded) -> None:
    variables = ray_run.environment("driver")
    golden("driver-variables").admits({name: "string" for name in variables if OURS.match(name)})


@pytest.mark.parametrize(
    "record",
    [
        "job.json",
        "services.json",
        "submission.json",
        "attempt-0/outcome",
        "attempt-0/lead-0.json",
        "attempt-0/nodes/0001.json",
        "attempt-0/services/web.json",
    ],
)
def test_records_of_the_run_directory_have_the_recorded_keys(
    gang_run: RecordedRun, golden: Recorded, record: str
) -> None:
    name = record.rpartition("/")[2].replace(".json", "")
    golden(f"record-{name}").admits(shape(json.loads((gang_run.directory / record).read_text())))
