"""What a leader's lease reads of the run that it leads. A run of agents and a torchrun job both provide it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from muster.lifecycle.events import RunOutcome
from muster.lifecycle.states import RunState


class LeasedConfig(Protocol):
    """The configuration of a leased run."""

    @property
    def failover(self) -> bool:
        """Whether another node may lead after the leader is lost."""


class LeasedRun(Protocol):
    """A run, as far as its lease depends on it."""

    @property
    def config(self) -> LeasedConfig: ...

    @property
    def state(self) -> RunState: ...

    @property
    def outcome(self) -> RunOutcome | None: ...

    @property
    def cycle(self) -> int: ...

    @property
    def membership_version(self) -> int:
        """A number that grows with every change of `members` or `excluded`."""

    @property
    def members(self) -> Iterable[int]:
        """Node indexes of the voters."""

    @property
    def excluded(self) -> Iterable[int]:
        """Node indexes that must not lead."""

    def has_left(self, node_index: int) -> bool:
        """Return whether a node that had joined is clean and gone, or lost."""
