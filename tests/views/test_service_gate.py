"""The services that the driver waits for, and their nodes."""

from __future__ import annotations

import pytest

from muster.lifecycle.services import ServicePlan
from muster.views.service_gate import OPEN, Gate, gate_of


@pytest.mark.parametrize(
    ("scope", "node_indexes"),
    [("all", [0, 1, 2, 3]), ("head", [0]), ("any", [3]), (2, [2, 3]), (9, [0, 1, 2, 3]), ([], [])],
)
def test_the_scope_decides_which_nodes_have_the_gate(scope: object, node_indexes: list[int]) -> None:
    gate = gate_of({"nodes": 4, "services": {"web": {"scope": scope}, "tensorboard": {"scope": "all", "gate": False}}})
    assert [node_index for node_index in range(4) if gate.services_on(node_index) == ("web",)] == node_indexes
    assert gate.services_on(None) == ()


def test_a_service_holds_the_driver_unless_its_record_says_otherwise() -> None:
    gate = gate_of({"nodes": 2, "services": {"web": {}, "log": {"gate": False}, "odd": 7}})
    assert gate == Gate((ServicePlan("web"), ServicePlan("odd")), 2)


def test_a_service_of_a_group_holds_the_driver_on_the_nodes_of_that_group() -> None:
    groups = [{"name": "trainers", "nodes": 2}, {"name": "engines", "nodes": 2}]
    gate = gate_of({"nodes": 4, "groups": groups, "services": {"engine": {"group": "engines"}}})
    assert [gate.services_on(rank) for rank in range(4)] == [(), (), ("engine",), ("engine",)]


@pytest.mark.parametrize("job", [{}, {"services": None}, {"services": []}, {"nodes": "many", "services": {}}])
def test_a_job_without_services_has_an_open_gate(job: dict[str, object]) -> None:
    assert gate_of(job).services_on(0) == OPEN.services_on(0) == ()
