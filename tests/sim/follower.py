"""An agent that finds the first leader, follows it and, when it is lost, joins or becomes another."""

from __future__ import annotations

import sys
from collections.abc import Callable

from muster.agent.leaderless import LEADER_POLL_S, RUN_DIRECTORY_TIMEOUT_S
from muster.election.follower import (
    Campaign,
    CleanUp,
    Connect,
    EndLeaderless,
    ExitAgent,
    FollowerEffect,
    FollowerElection,
    LostLeader,
    Poll,
    PollResult,
    StartupView,
)
from muster.election.leader_silence import LeaderSilence, LeaderVerdict, RunDirectoryView
from muster.exit_codes import INFRASTRUCTURE_FAILED
from tests.sim.agent import Environment
from tests.sim.candidate import Candidate
from tests.sim.files import Recorded
from tests.sim.host import Host
from tests.sim.invariants import GAVE_UP, LEFT_BEHIND, UNKNOWN_END
from tests.sim.leader import Leader
from tests.sim.member import Member
from tests.sim.network import ConnectionEnd

REFUSED = "was refused"
MARK_S = (0.0, 5.0)  # the time that it takes to mark the job of a run without a leader


class Follower(Member):
    """A complete agent: executes the effects of the real FollowerElection."""

    def __init__(self, env: Environment, host: Host) -> None:
        super().__init__(env, host)
        env.agents[self.node_index] = self
        self.candidate: Candidate | None = None
        self.leader: Leader | None = None
        plan = env.plan
        self.election = FollowerElection(
            self.node_index, plan.nodes, f"n{self.node_index}", plan.gather_timeout, self.history
        )
        self._outcome: Recorded | None = None  # as recorded, or announced by the leader
        self._why = GAVE_UP  # why it exits without knowing an outcome

    def boot(self) -> None:
        self._execute(self.election.started(self.running_now))

    def _execute(self, effect: FollowerEffect) -> None:
        if isinstance(effect, Poll):
            self.after(effect.after, self._poll, effect.startup)
        elif isinstance(effect, Connect):
            self.after(effect.after, self.join, effect.term, effect.node_index)
        elif isinstance(effect, CleanUp):
            self.after(self._end_processes(), self._cleaned)
        elif isinstance(effect, Campaign):
            self._campaign(effect)
        elif isinstance(effect, EndLeaderless):
            LeaderlessEnd(self, effect.reason, self._leaderless_ended).poll()
        elif isinstance(effect, ExitAgent):
            self._exit(effect.code)

    def _poll(self, startup: bool) -> None:
        files, asked, node_index = self.env.files, self.now, self.node_index
        self.access_files(
            lambda: (
                files.seen_claims(node_index),
                files.seen_outcome(node_index),
                files.seen_gone(node_index),
                StartupView(files.seen_heartbeats(range(node_index)), frozenset(files.seen_ends(node_index)))
                if startup
                else None,
            ),
            lambda seen: self._polled(self.now - asked, *seen),
        )

    def _polled(
        self,
        seconds: float,
        claims: dict[int, int],
        outcome: Recorded | None,
        gone: frozenset[int],
        startup: StartupView | None,
    ) -> None:
        self._outcome = outcome or self._outcome
        poll = PollResult(claims, None if outcome is None else outcome.code, seconds, startup, gone)
        self._execute(self.election.polled(poll, self.running_now))

    # -- a leader -----------------------------------------------------------------------------------------------

    def on_connected(self) -> None:
        self._execute(self.election.connected())

    def cpu_s(self) -> float:
        most = self.env.scenario.leader_cpu_s
        return self.env.world.between(0.0, most) if most and self.leader is not None and not self.leader.over else 0.0

    def on_unreachable(self) -> None:
        self.end = None
        self._execute(self.election.connect_failed(self.running_now))

    def on_dismissed(self, outcome: Recorded) -> None:
        self._outcome = outcome
        self._execute(self.election.dismissed(outcome.code))

    def on_refused(self) -> None:
        self.log("is refused")
        self.end, self._why = None, REFUSED
        self._execute(self.election.refused())

    def on_leader_lost(self, last_answer: float | None) -> None:
        self.end = None
        what = "has lost the leader of" if last_answer is not None else "is released by the candidate of"
        self.log(f"{what} term {self.term}")
        loss = LostLeader(self.membership, last_answer, "was lost", self._stopped_clean)
        self._execute(self.election.lost(loss, self.leader is not None, self.running_now))

    def _cleaned(self) -> None:
        self.host.end_all()
        self.host.clear()
        self._execute(self.election.cleaned(self.running_now))

    # -- candidate ----------------------------------------------------------------------------------------------

    def fence_left(self, term: int) -> float:
        """Return the seconds until the leaders before the term that this agent has lost are fenced."""
        return self.election.fence_left(self.running_now, range(term, sys.maxsize))

    def _campaign(self, campaign: Campaign) -> None:
        """Claim the term and accept members."""
        term = campaign.term
        self.log(f"claims term {term}")
        self.env.checker.claims(self.node_index, self.membership)
        self.candidate = candidate = Candidate(self, term, campaign.membership, campaign.in_use)
        self.access_files(
            lambda: self.env.files.claim(term, self.node_index), lambda ours: self._claimed(candidate, ours)
        )

    def _claimed(self, candidate: Candidate, ours: bool) -> None:
        if ours:
            candidate.open()
        else:
            candidate.retire()
        self._execute(self.election.claim_ended(self.running_now))

    def accept(self, end: ConnectionEnd, term: int) -> bool:
        if self.candidate is None or self.candidate.term != term or self.candidate.closed:
            return False
        self.candidate.accept(end)
        return True

    def start_leading(self, candidate: Candidate) -> None:
        """Lead the term that the candidate won."""
        self.leader = candidate.leader = Leader(self, candidate)
        self.leader.start()

    # -- the end ------------------------------------------------------------------------------------------------

    def on_lease_lost(self) -> None:
        """Handle the loss of the lease as a leader."""
        self.end = None
        LeaderlessEnd(
            self,
            "the majority of the nodes is lost",
            lambda: self.leave(self._why, INFRASTRUCTURE_FAILED),
        ).poll()

    def _exit(self, code: int) -> None:
        """Exit with the code of the election. An agent that gave up knows of no outcome."""
        self.env.checker.outcomes.check_exit(self.node_index, code, self._outcome)
        self.leave(self._outcome.reason if self._outcome is not None else self._why, code)

    def note_end(self, why: str) -> None:
        self._why = why

    def _leaderless_ended(self) -> None:
        self._execute(self.election.leaderless_ended())


class LeaderlessEnd:
    """Records the end of the run as `agent/leaderless.py` does, unless another node recorded it or still leads."""

    def __init__(self, agent: Follower, reason: str, then: Callable[[], None]) -> None:
        self._agent, self._reason, self._then = agent, reason, then
        self._silence = LeaderSilence(LEADER_POLL_S)
        self._until = agent.running_now + RUN_DIRECTORY_TIMEOUT_S
        self._again = False  # this poll is the second look

    def poll(self) -> None:
        agent, files, asked = self._agent, self._agent.env.files, self._agent.now
        node_index = agent.node_index
        agent.access_files(
            lambda: (files.newest(node_index), files.seen_outcome(node_index), files.seen_claims(node_index)),
            lambda seen: self._judge(agent.now - asked, *seen),
        )

    def _judge(
        self, seconds: float, status: tuple[int, float], outcome: Recorded | None, claims: dict[int, int]
    ) -> None:
        agent, (newest, stamp) = self._agent, status
        view = RunDirectoryView(outcome is not None, newest, stamp, frozenset(claims))
        verdict, again, self._again = self._silence.observe(view, seconds), self._again, False
        if verdict is LeaderVerdict.LEADERLESS and again:
            agent.access_files(self._record, lambda _: self._then())
        elif verdict is LeaderVerdict.LEADERLESS:
            self._again = True
            agent.after(agent.env.world.between(*MARK_S), self.poll)
        elif verdict is LeaderVerdict.UNKNOWN and agent.running_now < self._until:
            agent.after(LEADER_POLL_S, self.poll)
        else:
            if outcome is None:
                agent.note_end(LEFT_BEHIND if verdict is LeaderVerdict.LED else UNKNOWN_END)
            self._then()

    def _record(self) -> None:
        env = self._agent.env
        env.checker.outcomes.check_leaderless(self._agent.node_index, env.files, env.world.now)
        env.files.conclude(Recorded(INFRASTRUCTURE_FAILED, self._reason))
