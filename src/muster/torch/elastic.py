"""The protocol of a job whose nodes come and go, torchrun's: rounds of nodes, spares among them, and the end.

As in protocol.py no I/O, no clock, no randomness: what happened and the time go in, commands come out. It is a protocol
of its own since torchrun itself starts the workers, counts their failures and decides to begin again; what is decided
here is who takes part.

state      leaves on                                               to
gathering  the round closes: enough nodes are at the barrier       forming
forming    each of its nodes is ready                              running
forming    one is lost: nobody has started anything yet            gathering
running    one of its nodes is lost or back at the barrier,        gathering
           or there is room for one that waits
running    all of its nodes have finished                          ended
(any)      a failure that nothing mends                            ended

A round never reopens: every round that forms has a number of its own. The states of a node are those of states.py:
arrived (at the barrier), starting (has a rank in the round that forms), ready (and in the round that runs), stopping
(called back to the barrier), gone (its workers have finished). A spare is a node that stays at the barrier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle import roles
from muster.lifecycle.config import RunConfig
from muster.lifecycle.end_reasons import listed
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState
from muster.torch.elastic_types import CallBack, Command, ElasticPlan, End, Form, Go, JobState, Member, Refuse

FORM_TIMEOUT_S = 90.0  # for the nodes of a closed round to reach its store


class ElasticJob:
    """One torchrun job. Every method takes one event and returns what is to be done because of it."""

    def __init__(self, plan: ElasticPlan, now: float) -> None:
        self.plan = plan
        self.state = JobState.GATHERING
        self.round = 0  # the last one that closed
        self.members: dict[int, Member] = {}
        self.outcome: RunOutcome | None = None
        self.leader: int | None = None  # the node in whose process the coordinator is: without it there is no job
        self._crew: tuple[int, ...] = ()  # the nodes of the round that forms or runs, or ran last
        self._seen = 0
        self._loss: str | None = None  # the loss for which this gathering began
        self._last_call: float | None = None
        self._deadline = now + plan.gather_timeout

    # -- events -------------------------------------------------------------------------------------------------

    def arrived(self, key: int, host: str, number: int | None, now: float) -> list[Command]:
        """A node has connected and is at the barrier."""
        if self.state is JobState.ENDED:
            return [End((key,))]
        twin = next(
            (member for member in self.members.values() if number is not None and member.number == number), None
        )
        if twin is not None:
            return [Refuse(key, f"{twin.host} is node {number} already; {host} cannot be that too")]
        self.members[key] = Member(key, host, number)
        self._seen += 1
        return self._look(now)

    def back(self, key: int, now: float) -> list[Command]:
        """A node is at the barrier again: it was called, or torchrun begins again because its workers failed."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED:
            return []
        if member.state is NodeState.STOPPING:
            self._set(member, NodeState.ARRIVED)
        elif member.state is NodeState.READY and self.state is JobState.RUNNING:
            self._set(member, NodeState.ARRIVED)
            return self._gather(f"the workers of {member.host} failed; it begins again", None, now)
        return self._look(now)

    def ready(self, key: int, round: int, now: float) -> list[Command]:
        """A node of the round that forms has its rank and reaches the store."""
        member = self.members.get(key)
        if member is None or (self.state, round) != (JobState.FORMING, self.round):
            return []
        if member.state is NodeState.STARTING:
            self._set(member, NodeState.READY)
        if any(self.members[other].state is not NodeState.READY for other in self._crew):
            return []
        self.state = JobState.RUNNING
        return [Go(self.round, self._crew), *self._look(now)]

    def finished(self, key: int, now: float) -> list[Command]:
        """All workers of a node, and torchrun on it, ended well."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED:
            return []
        if key not in self._crew or member.state not in (NodeState.READY, NodeState.STOPPING):
            return self.lost(key, "left", now)
        self._set(member, NodeState.GONE)
        return self._look(now)

    def failed(self, key: int, code: int, reason: str, now: float) -> list[Command]:
        """torchrun ended on a node, with a failure. That is the end, unless the node had nothing to do yet."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED:
            return []
        works = member.state is NodeState.STOPPING or (member.state is NodeState.READY and self._runs)
        if not works:
            return self.lost(key, reason, now)
        said = f"{member.host}: {reason}"
        if member.state is NodeState.STOPPING and self._loss is not None:
            return self._fail(f"{self._loss}; then {said}", host=member.host)
        return self._fail(said, code, member.host)

    def lost(self, key: int, reason: str, now: float) -> list[Command]:
        """A node's connection ended, it fell silent, or it left."""
        member = self.members.get(key)
        if member is None or self.state is JobState.ENDED or member.state is NodeState.GONE:
            return []
        del self.members[key]
        loss = f"{member.host} {reason}"
        if key == self.leader:
            return self._fail(f"{loss}; the coordinator is there", host=member.host)
        if self.state is JobState.GATHERING:
            self._loss = self._loss or loss
        elif key in self._crew:
            return self._gather(loss, loss, now)
        return self._look(now)

    def tick(self, now: float) -> list[Command]:
        """Time passed; deadlines are looked at."""
        if self.state is JobState.FORMING and now >= self._deadline:
            late = [self.members[key] for key in self._crew if self.members[key].state is NodeState.STARTING]
            why = f"was not ready for round {self.round} within {FORM_TIMEOUT_S:g} s"
            refusals: list[Command] = [Refuse(member.key, f"{member.host} {why}") for member in late]
            return refusals + [command for member in late for command in self.lost(member.key, why, now)]
        return self._look(now)

    def close_all(self, reason: str) -> list[Command]:
        """The coordinator itself cannot go on."""
        return [] if self.state is JobState.ENDED else self._fail(reason)

    # -- rounds -------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> list[Command]:
        """What follows from who is where."""
        if self.state in (JobState.ENDED, JobState.FORMING):
            return []
        finished = [key for key in self._crew if key in self.members and self.members[key].state is NodeState.GONE]
        if finished:
            return self._look_at_the_end(finished)
        if self.state is JobState.GATHERING:
            return self._maybe_close(now)
        if len(self._crew) < self.plan.most and self._waiting():
            return self._gather(f"there is room for {listed([member.host for member in self._waiting()])}", None, now)
        return []

    def _look_at_the_end(self, finished: list[int]) -> list[Command]:
        """Once a node has finished, its round cannot be had again: all of it finishes, or the job has failed."""
        if len(finished) == len(self._crew):
            return self._end(RunOutcome("succeeded", 0, "all workers succeeded"))
        left = [key for key in self._crew if key not in self.members]
        again = [self.members[key].host for key in self._crew if key in self.members and self._at_barrier(key)]
        if not left and not again:
            return []
        why = self._loss if left else f"{listed(again)} would begin again"
        return self._fail(f"{why}; {self.members[finished[0]].host} has finished already")

    def _gather(self, why: str, loss: str | None, now: float) -> list[Command]:
        """The round is over. Who runs is called back; who had not started yet is at the barrier still."""
        called = []
        for key in self._crew:
            member = self.members.get(key)
            if member is None or member.state not in (NodeState.STARTING, NodeState.READY):
                continue
            if self._runs:
                called.append(key)
            self._set(member, NodeState.STOPPING if self._runs else NodeState.ARRIVED)
        command = CallBack(self.round, tuple(called), why)
        self.state, self._loss, self._last_call = JobState.GATHERING, loss, None
        self._deadline = now + self.plan.gather_timeout
        return [*([command] if called else []), *self._look(now)]

    def _maybe_close(self, now: float) -> list[Command]:
        """Close when everybody is here; or enough are, and last call or deadline is over. Or give the round up."""
        here = self._waiting()
        coming = [member for member in self.members.values() if member.state is NodeState.STOPPING]
        unseen = max(0, self.plan.expected - self._seen)
        if len(here) + len(coming) + unseen < self.plan.least:
            self._deadline = min(self._deadline, now + self.plan.rejoin)
        if len(here) < self.plan.least:
            self._last_call = None
            return self._too_few(here) if now >= self._deadline else []
        awaited = bool(coming) or (self.round == 0 and unseen > 0)
        if awaited:
            self._last_call = now + self.plan.last_call if self._last_call is None else self._last_call
            if now < min(self._last_call, self._deadline):
                return []
        return self._close(here, now)

    def _close(self, here: list[Member], now: float) -> list[Command]:
        """Roles by the order of the nodes, not of their arrival; the last ones are spares."""
        nodes = [RunNode(place, member.host, member.state) for place, member in enumerate(here)]
        plan = RunConfig([node.host for node in nodes], ray=False, spares=max(0, len(here) - self.plan.most))
        given = roles.assign_roles(nodes, plan, leader=0)
        active = [(here[node.rank], node.logical) for node in given if node.role is Role.ACTIVE]
        self._crew = tuple(member.key for member, _ in active)
        for member, rank in active:
            self.members[member.key] = replace(member, state=NodeState.STARTING, rank=rank)
        self.round += 1
        self.state, self._last_call = JobState.FORMING, None
        self._deadline = now + FORM_TIMEOUT_S
        return [Form(self.round, {key: rank for key in self._crew if (rank := self.members[key].rank) is not None})]

    # -- the end ------------------------------------------------------------------------------------------------

    def _too_few(self, here: list[Member]) -> list[Command]:
        """Name who is missing, as far as that is known."""
        lost, left = f"{self._loss}; " if self._loss is not None else "", len(self.members)
        needed = f"of the {self.plan.least} nodes that the job needs"
        if lost and left < self.plan.least:
            return self._fail(f"{lost}{left} {needed} {'is' if left == 1 else 'are'} left")
        slow = [member.host for member in self._in(NodeState.STOPPING)]
        missing = [host for host in self.plan.hosts if host not in {member.host for member in self.members.values()}]
        named = f"; missing: {listed(slow + missing)}" if slow or missing else ""
        return self._fail(f"{lost}{len(here)} {needed} came within {self.plan.gather_timeout:g} s{named}")

    def _fail(self, reason: str, code: int = INFRASTRUCTURE_FAILED, host: str | None = None) -> list[Command]:
        return self._end(RunOutcome("failed", code, reason, host, phase=self.state.value))

    def _end(self, outcome: RunOutcome) -> list[Command]:
        """The first recorded reason stands."""
        self.outcome = outcome
        self.state = JobState.ENDED
        return [End(tuple(self.members))]

    # -- small questions ----------------------------------------------------------------------------------------

    @property
    def _runs(self) -> bool:
        return self.state is JobState.RUNNING

    def _waiting(self) -> list[Member]:
        """Who is at the barrier, in the order of the nodes."""
        return sorted(self._in(NodeState.ARRIVED), key=lambda member: member.order)

    def _in(self, state: NodeState) -> Iterable[Member]:
        return (member for member in self.members.values() if member.state is state)

    def _at_barrier(self, key: int) -> bool:
        return self.members[key].state is NodeState.ARRIVED

    def _set(self, member: Member, state: NodeState) -> None:
        rank = member.rank if state in (NodeState.READY, NodeState.STOPPING, NodeState.GONE) else None
        self.members[member.key] = replace(member, state=state, rank=rank)
