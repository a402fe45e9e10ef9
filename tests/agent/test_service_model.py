"""Service definitions read from the run directory."""

from __future__ import annotations

from muster.agent.service_model import service_plans
from muster.rundir.node_groups import NodeGroup


def test_the_state_machine_gets_a_plan_of_each_service() -> None:
    record = {"scope": 2, "gate": False, "deadline": 5.0, "kind": "command"}
    (plan,) = service_plans({"web": record})
    assert (plan.name, plan.scope, plan.gate, plan.deadline) == ("web", 2, False, 5.0)
    assert plan.ranks is None


def test_the_scope_of_a_service_applies_to_the_ranks_of_its_group() -> None:
    record = {"scope": "all", "gate": True, "deadline": 5.0, "group": "engines"}
    (plan,) = service_plans({"web": record}, [NodeGroup("trainers", 2), NodeGroup("engines", 2)])
    assert plan.ranks == range(2, 4)
    assert service_plans(None) == ()
