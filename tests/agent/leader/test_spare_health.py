"""Health checks of spares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from muster.agent.control.codec import Message
from muster.agent.control.messages import StartCheck, StopCheck
from muster.agent.leader.spare_health import SpareHealth
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState


class Recorder:
    """The messages and phase lines of a SpareHealth."""

    def __init__(self, text: str | None = "nvidia-smi", interval: float = 60.0) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.phases: list[str] = []
        context: Any = SimpleNamespace(
            job=SimpleNamespace(health_check=text, spare_check_interval=interval, selected_checks={}),
            connections=SimpleNamespace(send=self._send),
            publisher=SimpleNamespace(phase=self.phases.append),
        )
        self.health = SpareHealth(context)

    def _send(self, node_index: int, message: Message) -> None:
        self.sent.append((node_index, message))


def spare(reason: str | None = None) -> RunNode:
    return RunNode(3, "n3", NodeState.ARRIVED, Role.SPARE, unhealthy_reason=reason)


def test_a_node_is_checked_while_it_waits_as_a_spare() -> None:
    recorder = Recorder()
    recorder.health.update([spare(), spare(), NodeState.ARRIVED])
    recorder.health.update([RunNode(3, "n3", NodeState.STARTING, Role.ACTIVE, 0)])
    assert recorder.sent == [(3, StartCheck("nvidia-smi", 60.0)), (3, StopCheck())]


def test_without_a_check_or_an_interval_no_node_is_checked() -> None:
    for recorder in (Recorder(text=None), Recorder(interval=0.0)):
        recorder.health.update([spare()])
        assert recorder.sent == []


def test_an_unhealthy_spare_is_reported_once_and_again_when_it_is_healthy() -> None:
    recorder = Recorder()
    recorder.health.update([spare("no GPU"), spare("no GPU"), spare()])
    assert recorder.phases == ["n3 is unhealthy, and not used: no GPU", "n3 is healthy again"]
