"""A torchrun job as the lease of its coordinator reads it (election/leader_lease.py). No I/O, no clock.

of the lease              of the job
a run with its cycles     the job with its rounds: one runs once every possible next coordinator knows its number
gathering                 the coordinator has closed no round yet
members                   the nodes that are connected
excluded                  lost nodes, until they come back
"""

from __future__ import annotations

from muster.lifecycle.events import RunOutcome
from muster.lifecycle.states import RunState
from muster.torch.elastic import ElasticJob
from muster.torch.elastic_types import ElasticConfig, JobState


class LeasedJob:
    """Implements LeasedRun (election/leased_run.py)."""

    def __init__(self, job: ElasticJob) -> None:
        self._job = job

    @property
    def config(self) -> ElasticConfig:
        return self._job.config

    @property
    def state(self) -> RunState:
        if self._job.state is JobState.ENDED:
            assert self._job.outcome is not None
            return RunState.FAILED if self._job.outcome.exit_code else RunState.SUCCEEDED
        return RunState.RUNNING if self._job.closed_rounds else RunState.GATHERING

    @property
    def outcome(self) -> RunOutcome | None:
        return self._job.outcome

    @property
    def cycle(self) -> int:
        return self._job.round

    @property
    def membership_version(self) -> int:
        return self._job.membership_version

    @property
    def members(self) -> set[int]:
        return self._job.node_indexes

    @property
    def excluded(self) -> set[int]:
        return self._job.excluded

    def has_left(self, node_index: int) -> bool:
        return node_index not in self._job.node_indexes
