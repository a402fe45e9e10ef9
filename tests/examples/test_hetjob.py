"""The example with groups: tasks run on the nodes of one group and find the service of the head."""

from __future__ import annotations

import pytest
import yaml
from tests.examples.running import EXAMPLES, lines_of, run_example
from tests.running import MusterCommand


@pytest.mark.slow
@pytest.mark.ray
def test_tasks_of_a_group_use_the_service_of_the_head(muster: MusterCommand) -> None:
    done = run_example(muster, "hetjob", file="local.yaml")
    lines = lines_of(done)
    assert "the driver is in the group trainers; 2 nodes are actors" in lines
    assert lines.count("actors got status 200 from the service") == 2


def test_the_job_file_for_one_machine_differs_only_in_what_a_machine_does_not_have() -> None:
    cluster, local = (yaml.safe_load((EXAMPLES / "hetjob" / name).read_text()) for name in ("job.yaml", "local.yaml"))
    assert [(group["name"], group["nodes"]) for group in cluster.pop("groups")] == [
        (group["name"], group["nodes"]) for group in local.pop("groups")
    ]
    assert local.pop("cpus_per_node") == 1
    assert cluster == local
