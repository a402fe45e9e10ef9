"""The job's fields for nodes that have failed before."""

from __future__ import annotations

import pytest

from muster.errors import SpecError
from muster.spec import JobSpec, load_job
from muster.spec.fields.node_memory import absolute_directory


def test_a_job_avoids_bad_nodes_and_has_no_memory_unless_it_is_given() -> None:
    spec = JobSpec(command=["true"])
    assert (spec.avoid_bad_nodes, spec.node_memory, spec.on_bad_node) == (True, None, None)


def test_a_memory_means_the_same_directory_on_every_host() -> None:
    assert [absolute_directory(path) for path in ("/shared/nodes", "~/nodes")] == ["/shared/nodes", "~/nodes"]
    with pytest.raises(SpecError, match="absolute path"):
        load_job(None, {"command": ["true"], "node_memory": "nodes"})
