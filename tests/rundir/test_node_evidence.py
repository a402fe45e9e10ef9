"""Which failures of an attempt implicate a host."""

from __future__ import annotations

from typing import Any

import pytest

from muster.rundir.node_evidence import BAD_SCORE, HALF_LIFE_S, WEIGHTS, Evidence, assess, bad_hosts, by_host, score

HOSTS = ["n0", "n1", "n2", "n3"]


class Events:
    """Events of an attempt, a second apart."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def add(self, event: str, term: int = 0, cycle: int = 0, **fields: Any) -> Events:
        self.all.append({"time": float(len(self.all)), "event": event, "term": term, "cycle": cycle, **fields})
        return self

    def run(self, state: str, **more: Any) -> Events:
        return self.add("run", state=state, **more)

    def node(self, host: str, state: str, **more: Any) -> Events:
        return self.add("node", host=host, state=state, **more)

    def failure(self, host: str, phase: str, reason: str, **more: Any) -> Events:
        return self.add("failure", host=host, phase=phase, reason=reason, **more)

    def found(self, gang: bool = False, hosts: list[str] = HOSTS) -> list[tuple[str, str, str]]:
        return [(one.host, one.kind, one.reason) for one in assess(self.all, hosts, "r", 1, gang)]


def evidence(host: str, kind: str = "lost", time: float = 0.0) -> Evidence:
    return Evidence(host, kind, "why", time, "r", 0)


@pytest.mark.parametrize(
    ("phase", "reason", "kind"),
    [
        ("running", "the agent of n1 is gone", "lost"),
        ("gathering", "the agent of n1 fell silent", "lost"),
        ("start", "--health-check failed: GPU 3 is gone (code 1)", "check"),
        ("start", "--setup failed with code 3", "start"),
        ("resources", "n1: this step has 1 GPU, 2 were asked for", "start"),
        ("network", "no interface", "start"),
        ("ray", "Ray's raylet was ended by SIGKILL", "ray"),
    ],
)
def test_a_failure_of_a_node_is_evidence_of_a_kind(phase: str, reason: str, kind: str) -> None:
    events = Events().run("running").failure("n1", phase, reason).node("n1", "lost").run("finishing")
    assert events.found() == [("n1", kind, reason)]


@pytest.mark.parametrize("phase", ["driver", "service", "lead"])
def test_failures_of_the_user_s_programs_implicate_no_node(phase: str) -> None:
    assert Events().failure("n1", phase, "exited with 1").found() == []


def test_in_a_gang_the_node_of_a_failed_rank_is_implicated_a_little() -> None:
    events = Events()
    for cycle in range(3):
        events.failure("n1", "driver", "rank 1 exited with 1", cycle=cycle)
    found = assess(events.all, HOSTS, "r", 1, gang=True)
    assert [one.kind for one in found] == ["rank"] * 3
    assert bad_hosts(found[:2], now=2.0) == [] and bad_hosts(found, now=2.0) == ["n1"]


def test_a_loss_without_a_published_reason_counts_once() -> None:
    assert Events().node("n2", "lost").node("n2", "lost").found() == [("n2", "lost", "the node was lost")]


def test_a_spare_that_fails_its_check_is_implicated() -> None:
    events = Events().node("n3", "waiting", healthy=False, ailment="the disk is full")
    assert events.found() == [("n3", "check", "the disk is full")]


def test_what_is_lost_once_the_run_ends_is_no_evidence() -> None:
    """A stop, a cancelled job and a time limit begin with `finishing`, before nodes go."""
    events = Events().run("running").run("finishing").node("n1", "lost").failure("n2", "running", "gone")
    assert events.found() == []


def test_members_that_a_former_leader_has_lost_and_a_later_one_has_are_healthy() -> None:
    events = Events().run("running").failure("n1", "running", "the agent of n1 is gone")
    events.add("lead", term=1, host="n1", reason="the leader n0 is gone").node("n1", "arrived", term=1)
    assert events.found() == [("n0", "lost", "the leader n0 is gone")]


def test_a_leader_that_hands_over_after_a_failure_of_its_node_counts_once() -> None:
    events = Events().failure("n0", "ray", "`ray start` exited with 1")
    events.add("lead", term=1, host="n1", reason="n0 hands over")
    assert events.found() == [("n0", "ray", "`ray start` exited with 1")]


def test_a_leader_that_leads_again_or_follows_later_is_healthy() -> None:
    events = Events().add("lead", term=1, host="n1", reason="n0 has lost the majority").node("n0", "arrived", term=2)
    assert events.found() == []


def test_rays_end_while_the_next_cycle_begins_is_no_evidence() -> None:
    events = Events().run("restarting").failure("n1", "ray", "Ray's raylet exited with 1").run("gathering")
    assert events.found() == []


def test_what_more_than_half_of_the_nodes_share_is_the_job_s_or_the_network_s() -> None:
    events = Events().failure("n0", "start", "--setup failed").failure("n1", "start", "--setup failed")
    assert len(events.found()) == 2
    assert events.failure("n2", "start", "--setup failed").found() == []


def test_an_exclusion_that_a_program_requested_implicates_its_node_also_a_single_one() -> None:
    events = Events().add("control", host="n0", kind="exclude_node", reason="bad memory")
    events.add("control", host="n1", kind="no_restart", reason="wrong data").run("finishing")
    for hosts in (HOSTS, ["n0"]):
        assert events.found(hosts=hosts) == [("n0", "program", "bad memory")]


def test_only_its_check_implicates_a_single_node() -> None:
    events = Events().failure("n0", "start", "--setup failed")
    assert events.found(hosts=["n0"]) == []
    assert events.failure("n0", "start", "--health-check failed: no GPU").found(hosts=["n0"])[0][1] == "check"


def test_scores_add_up_and_halve_every_day() -> None:
    lost, ray = evidence("n1"), evidence("n1", "ray")
    assert score([lost, ray], 0.0) == pytest.approx(WEIGHTS["lost"] + WEIGHTS["ray"])
    assert score([lost], HALF_LIFE_S) == pytest.approx(BAD_SCORE)
    assert bad_hosts([lost], HALF_LIFE_S) == ["n1"] and bad_hosts([lost], HALF_LIFE_S + 60) == []
    assert score([lost], -100.0) == WEIGHTS["lost"]  # a clock that is behind


def test_a_day_after_a_second_loss_a_host_is_still_bad() -> None:
    losses = [evidence("n1", time=0.0), evidence("n1", time=HALF_LIFE_S)]
    assert bad_hosts(losses, 2 * HALF_LIFE_S) == ["n1"]


def test_evidence_is_grouped_by_host_in_the_order_of_time() -> None:
    late, early, other = evidence("n1", time=2.0), evidence("n1", time=1.0), evidence("n0", time=3.0)
    assert by_host([late, early, other]) == {"n1": [early, late], "n0": [other]}


@pytest.mark.parametrize(
    "record", [None, {}, {"host": 1}, {**vars(evidence("n1")), "kind": "new"}, {**vars(evidence("n1")), "time": "x"}]
)
def test_a_damaged_record_is_no_evidence(record: Any) -> None:
    assert Evidence.from_record(record) is None
    assert Evidence.from_record(vars(evidence("n1"))) == evidence("n1")


def test_a_failed_built_in_check_implicates_its_node_also_after_the_end_of_the_run_began() -> None:
    before = Events().add("check", host="n1", reason="disk: full").run("finishing")
    after = Events().run("finishing").add("check", host="n1", reason="disk: full")
    assert before.found() == after.found() == [("n1", "check", "disk: full")]


def test_a_built_in_check_that_more_than_half_of_the_nodes_fail_implicates_none() -> None:
    events = Events()
    for host in HOSTS[:3]:
        events.add("check", host=host, reason="shared-storage: slow")
    assert events.found() == []
