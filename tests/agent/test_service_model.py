"""Service definitions read from the run directory."""

from __future__ import annotations

from muster.agent.service_model import service_plans


def test_the_state_machine_gets_a_plan_of_each_service() -> None:
    record = {"scope": 2, "gate": False, "deadline": 5.0, "kind": "command"}
    (plan,) = service_plans({"web": record})
    assert (plan.name, plan.scope, plan.gate, plan.deadline) == ("web", 2, False, 5.0)
    assert service_plans(None) == ()
