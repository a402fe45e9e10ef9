"""The state machine of an elastic torchrun job: rounds of nodes, spares, and the end.

Like lifecycle/state_machine.py it has no I/O, clock or randomness: events and the time go in, commands come out. It is
separate because torchrun itself starts the workers, counts their failures and restarts them; here is decided only which
nodes take part.

state      leaves on                                               to
gathering  the round closes: enough nodes are at the barrier       forming
forming    each of its nodes is ready, and with failover every     running
           possible next coordinator knows the round's number
forming    one is lost: no worker has started yet                  gathering
running    one of its nodes is lost or back at the barrier,        gathering
           or a waiting node can be added
running    all of its nodes have finished                          ended
(any)      a failure that cannot be repaired                       ended

A round never reopens: every round that forms has a new number. The states of a node are those of lifecycle/states.py:
arrived (at the barrier), starting (has a rank in the forming round), ready (also in the running round), stopping
(recalled to the barrier), gone (its workers have finished). A spare is a node that stays at the barrier.

A coordinator that follows a lost one starts in the state gathering, with the next round number. Nodes come to it from
the barrier. It waits for those that the lost coordinator had, since they may take long to end their workers. A node
whose torchrun has ended meanwhile cannot take part again, so that the job fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from muster.election.follower import LEADER_SEARCH_TIMEOUT_S
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle import roles
from muster.lifecycle.config import FIRST_TERM_START, RunConfig, TermStart
from muster.lifecycle.end_reasons import listed
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState
from muster.torch.elastic_types import (
    Command,
    ElasticConfig,
    EndJob,
    FormRound,
    JobState,
    Member,
    Recall,
    Refuse,
    StartRound,
)

FORM_TIMEOUT_S = 90.0  # for the nodes of a closed round to reach its store


class ElasticJob:
    """One torchrun job. Every public method handles one event and returns the commands to execute."""

    def __init__(
        self,
        config: ElasticConfig,
        now: float,
        start: TermStart = FIRST_TERM_START,
        awaited: frozenset[int] = frozenset(),
    ) -> None:
        """`start.cycle`: the next round, after a lost coordinator. `awaited`: node indexes of the members it had."""
        self.config = config
        self.state = JobState.GATHERING
        self.round = max(start.cycle - 1, 0)  # the last one that closed
        self.members: dict[int, Member] = {}
        self.node_indexes: set[int] = set()  # of the members
        self.excluded = set(start.excluded)  # node indexes of lost nodes
        self.membership_version = 0  # of the two sets
        self.outcome: RunOutcome | None = None
        self.coordinator: int | None = None  # key of the node whose process coordinates: without it the job ends
        self._participants: tuple[int, ...] = ()  # nodes of the forming or running round, or of the last one
        self._arrivals = 0
        self.closed_rounds = 0  # by this coordinator
        self._resumed = start.term > 0
        self._awaited = set(awaited)
        self._awaited_until = now + LEADER_SEARCH_TIMEOUT_S  # a node that has not come by then has given up
        self._authorized = 0  # the last round that may run; counts only with failover
        self._loss: str | None = start.reason or None  # the loss for which this gathering began
        self._last_call: float | None = None
        self._deadline = now + config.gather_timeout

    # -- events -------------------------------------------------------------------------------------------------

    def arrived(self, key: int, host: str, node_index: int | None, now: float) -> list[Command]:
        """Handle a node that connected and is at the barrier."""
        if self.state is JobState.ENDED:
            return [EndJob((key,))]
        members = self.members.values()
        twin = next((member for member in members if node_index is not None and member.node_index == node_index), None)
        if twin is not None:
            return [Refuse(key, f"{host} cannot join as node {node_index}: {twin.host} is that node")]
        self.members[key] = Member(key, host, node_index)
        self._arrivals += 1
        if node_index is not None:
            self.node_indexes.add(node_index)
            self.excluded.discard(node_index)
            self._awaited.discard(node_index)
            self.membership_version += 1
        return self._advance(now)

    def arrived_ended(self, key: int, host: str, code: int, reason: str) -> list[Command]:
        """Handle a node that comes from a lost coordinator, and on which torchrun ended before it could report that."""
        if self.state is JobState.ENDED:
            return [EndJob((key,))]
        self.members[key] = Member(key, host, state=NodeState.GONE)
        end = f"then {host}: {reason}" if code else f"{host} has finished already"
        return self._fail("; ".join(filter(None, (self._loss, end))), host=host if code else None)

    def returned(self, key: int, now: float) -> list[Command]:
        """Handle a node that is at the barrier again: it was recalled, or torchrun restarts its failed workers."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED:
            return []
        if member.state is NodeState.STOPPING:
            self._set(member, NodeState.ARRIVED)
        elif member.state is NodeState.READY and self.state is JobState.RUNNING:
            self._set(member, NodeState.ARRIVED)
            return self._gather(f"the workers of {member.host} failed; it restarts them", None, now)
        return self._advance(now)

    def ready(self, key: int, round: int, now: float) -> list[Command]:
        """Handle a node of the forming round that has its rank and reached the store."""
        member = self.members.get(key)
        if member is None or (self.state, round) != (JobState.FORMING, self.round):
            return []
        if member.state is NodeState.STARTING:
            self._set(member, NodeState.READY)
        return self._maybe_start(now)

    def authorize(self, round: int, now: float) -> list[Command]:
        """Handle that every possible next coordinator knows of this round: it may run."""
        self._authorized = max(self._authorized, round)
        return self._maybe_start(now)

    def finished(self, key: int, now: float) -> list[Command]:
        """Handle a node on which all workers, and torchrun, succeeded."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED:
            return []
        if key not in self._participants or member.state not in (NodeState.READY, NodeState.STOPPING):
            return self.lost(key, "left", now)
        self._set(member, NodeState.GONE)
        return self._advance(now)

    def failed(self, key: int, code: int, reason: str, now: float) -> list[Command]:
        """Handle a node on which torchrun failed: that ends the job, unless the node had not started workers."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED:
            return []
        works = member.state is NodeState.STOPPING or (member.state is NodeState.READY and self._runs)
        if not works:
            return self.lost(key, reason, now)
        failure = f"{member.host}: {reason}"
        if member.state is NodeState.STOPPING and self._loss is not None:
            return self._fail(f"{self._loss}; then {failure}", host=member.host)
        return self._fail(failure, code, member.host)

    def lost(self, key: int, reason: str, now: float) -> list[Command]:
        """Handle a node whose connection ended, whose heartbeat timed out, or which left."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED or member.state is NodeState.GONE:
            return []
        del self.members[key]
        if member.node_index is not None:
            self.node_indexes.discard(member.node_index)
            self.excluded.add(member.node_index)
            self.membership_version += 1
        loss = f"{member.host} {reason}"
        if key == self.coordinator:
            return self._fail(f"{loss}; it ran the coordinator", host=member.host)
        if self.state is JobState.GATHERING:
            self._loss = self._loss or loss
        elif key in self._participants:
            return self._gather(loss, loss, now)
        return self._advance(now)

    def tick(self, now: float) -> list[Command]:
        """Check deadlines."""
        if self.state is JobState.FORMING and now >= self._deadline:
            late = [self.members[key] for key in self._participants if self.members[key].state is NodeState.STARTING]
            reason = f"was not ready for round {self.round} within {FORM_TIMEOUT_S:g} s"
            refusals: list[Command] = [Refuse(member.key, f"{member.host} {reason}") for member in late]
            return refusals + [command for member in late for command in self.lost(member.key, reason, now)]
        return self._advance(now)

    def abort(self, reason: str) -> list[Command]:
        """End the job because the coordinator itself failed."""
        return [] if self.state is JobState.ENDED else self._fail(reason)

    # -- rounds -------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Command]:
        """Close the round, begin another or end the job, as the states of the nodes allow."""
        if self.state in (JobState.ENDED, JobState.FORMING):
            return []
        members = self.members
        finished = [key for key in self._participants if key in members and members[key].state is NodeState.GONE]
        if finished:
            return self._maybe_end(finished)
        if self.state is JobState.GATHERING:
            return self._maybe_close(now)
        if len(self._participants) < self.config.max_nodes and self._waiting():
            return self._gather(f"there is room for {listed([member.host for member in self._waiting()])}", None, now)
        return []

    def _maybe_start(self, now: float) -> list[Command]:
        """Start the forming round if each of its nodes is ready and it may run."""
        if self.state is not JobState.FORMING or (self.config.failover and self._authorized < self.round):
            return []
        if any(self.members[key].state is not NodeState.READY for key in self._participants):
            return []
        self.state = JobState.RUNNING
        return [StartRound(self.round, self._participants), *self._advance(now)]

    def _maybe_end(self, finished: list[int]) -> list[Command]:
        """End the job once a node has finished: either all nodes of the round finish, or the job has failed."""
        if len(finished) == len(self._participants):
            return self._end(RunOutcome("succeeded", 0, "all workers succeeded"))
        left = [key for key in self._participants if key not in self.members]
        again = [self.members[key].host for key in self._participants if key in self.members and self._at_barrier(key)]
        if not left and not again:
            return []
        reason = self._loss if left else f"{listed(again)} would restart its workers"
        return self._fail(f"{reason}; {self.members[finished[0]].host} has finished already")

    def _gather(self, reason: str, loss: str | None, now: float) -> list[Command]:
        """End the round. Running nodes are recalled; nodes that had not started are still at the barrier."""
        recalled = []
        for key in self._participants:
            member = self.members.get(key)
            if member is None or member.state not in (NodeState.STARTING, NodeState.READY):
                continue
            if self._runs:
                recalled.append(key)
            self._set(member, NodeState.STOPPING if self._runs else NodeState.ARRIVED)
        command = Recall(self.round, tuple(recalled), reason)
        self.state, self._loss, self._last_call = JobState.GATHERING, loss, None
        self._deadline = now + self.config.gather_timeout
        return [*([command] if recalled else []), *self._advance(now)]

    def _maybe_close(self, now: float) -> list[Command]:
        """Close the round when no node is missing, or enough are available and last call or deadline has passed.

        Without enough nodes, fail at the deadline.
        """
        available = self._waiting()
        stopping = list(self._in_state(NodeState.STOPPING))
        missing = self._missing(now)
        if len(available) + len(stopping) + missing < self.config.min_nodes:
            self._deadline = min(self._deadline, now + self.config.rejoin_timeout)
        if len(available) < self.config.min_nodes:
            self._last_call = None
            return self._too_few(available, now) if now >= self._deadline else []
        if stopping or (self.closed_rounds == 0 and missing > 0):
            self._last_call = now + self.config.last_call if self._last_call is None else self._last_call
            if now < min(self._last_call, self._deadline):
                return []
        return self._close(available, now)

    def _missing(self, now: float) -> int:
        """Return the number of nodes that have not arrived and may still do so."""
        if self._resumed:
            return len(self._awaited) if now < self._awaited_until else 0
        return max(0, self.config.expected - self._arrivals)

    def _close(self, available: list[Member], now: float) -> list[Command]:
        """Close the round. Roles follow the order of the nodes, not of their arrival; the last ones are spares."""
        nodes = [RunNode(index, member.host, member.state) for index, member in enumerate(available)]
        spares = max(0, len(available) - self.config.max_nodes)
        assigned = roles.assign_roles(
            nodes, RunConfig([node.host for node in nodes], ray=False, spares=spares), leader=0
        )
        ranks = {
            available[node.node_index].key: node.rank
            for node in assigned
            if node.role is Role.ACTIVE and node.rank is not None
        }
        self._participants = tuple(ranks)
        for key, rank in ranks.items():
            self.members[key] = replace(self.members[key], state=NodeState.STARTING, rank=rank)
        self.round += 1
        self.closed_rounds += 1
        self.state, self._last_call = JobState.FORMING, None
        self._deadline = now + FORM_TIMEOUT_S
        return [FormRound(self.round, ranks)]

    # -- the end ------------------------------------------------------------------------------------------------

    def _too_few(self, available: list[Member], now: float) -> list[Command]:
        """Fail the job, naming the missing nodes as far as they are known."""
        lost = f"{self._loss}; " if self._loss is not None else ""
        left = len(self.members) + (self._missing(now) if self._resumed else 0)
        needed = f"of the {self.config.min_nodes} nodes that the job needs"
        if lost and left < self.config.min_nodes:
            return self._fail(f"{lost}{left} {needed} {'is' if left == 1 else 'are'} left")
        slow = [member.host for member in self._in_state(NodeState.STOPPING)]
        joined = {member.host for member in self.members.values()}
        missing = slow + [host for host in self.config.hosts if host not in joined]
        named = f"; missing: {listed(missing)}" if missing else ""
        return self._fail(f"{lost}{len(available)} {needed} joined within {self.config.gather_timeout:g} s{named}")

    def _fail(self, reason: str, code: int = INFRASTRUCTURE_FAILED, host: str | None = None) -> list[Command]:
        return self._end(RunOutcome("failed", code, reason, host, phase=self.state.value))

    def _end(self, outcome: RunOutcome) -> list[Command]:
        self.outcome = outcome
        self.state = JobState.ENDED
        return [EndJob(tuple(self.members))]

    # -- members ------------------------------------------------------------------------------------------------

    @property
    def _runs(self) -> bool:
        return self.state is JobState.RUNNING

    def _waiting(self) -> list[Member]:
        """Return the members at the barrier, in the order of the nodes."""
        return sorted(self._in_state(NodeState.ARRIVED), key=lambda member: member.order)

    def _in_state(self, state: NodeState) -> Iterable[Member]:
        return (member for member in self.members.values() if member.state is state)

    def _at_barrier(self, key: int) -> bool:
        return self.members[key].state is NodeState.ARRIVED

    def _set(self, member: Member, state: NodeState) -> None:
        rank = member.rank if state in (NodeState.READY, NodeState.STOPPING, NodeState.GONE) else None
        self.members[member.key] = replace(member, state=state, rank=rank)
