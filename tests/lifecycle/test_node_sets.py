"""The index of nodes: after any sequence of changes it equals what a scan of all nodes finds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.lifecycle.config import EXTERNAL_LEADER, RunConfig
from muster.lifecycle.node_sets import NodeSets, PoolIndex
from muster.lifecycle.roles import Role, RunNode, available_pool, initial_nodes, possible_pool, usable_pool
from muster.lifecycle.states import NodeState
from muster.lifecycle.topology import NodeLocation

NODES = 5
LOCATIONS = [NodeLocation(domain, f"{domain}.{number}") for domain in ("a", "b", "") for number in (0, 1)]
STATES = st.sampled_from([NodeState.ARRIVED] * 6 + list(NodeState))  # mostly nodes that can be used
ROLES = st.sampled_from([Role.WAITING, Role.ACTIVE, Role.SPARE] * 3 + [Role.EXCLUDED])
HEALTH = st.sampled_from([None] * 5 + ["--health-check failed"])
CHANGE = st.tuples(st.integers(0, NODES - 1), STATES, ROLES, st.sampled_from(LOCATIONS), HEALTH)
CHANGES = st.lists(CHANGE, max_size=3 * NODES)


def plan(**fields: Any) -> RunConfig:
    return RunConfig([f"n{number}" for number in range(NODES)], **fields)


def index_of(pool: PoolIndex) -> set[int]:
    return {number for number in range(NODES) if number in pool}


@settings(max_examples=200)
@given(
    spares=st.integers(0, 3),
    segment=st.integers(1, 3),
    leader=st.integers(EXTERNAL_LEADER, 4),
    locations=st.lists(st.sampled_from(LOCATIONS), min_size=NODES, max_size=NODES),
    changes=CHANGES,
)
def test_the_index_equals_a_scan_after_every_change(
    spares: int, segment: int, leader: int, locations: list[NodeLocation], changes: list[Any]
) -> None:
    config = plan(spares=spares, segment=segment, topology=segment > 1)
    nodes = initial_nodes(config)
    arrivals = [(number, NodeState.ARRIVED, Role.WAITING, location, None) for number, location in enumerate(locations)]
    sets = NodeSets(config, nodes)
    version = 0
    for number, state, role, location, unhealthy in [*arrivals, *changes]:
        before = nodes[number]
        if before.role is Role.EXCLUDED:  # excluded for the rest of the run
            role = Role.EXCLUDED
        if before in sets_spares(sets, nodes):  # a spare keeps its location: an agent reports it once, on arrival
            location = before.location
        nodes[number] = RunNode(number, before.host, state, role, None, location, unhealthy)
        sets.update(before, nodes[number])
        after = nodes[number]
        newly_excluded = after.role is Role.EXCLUDED and before.role is not Role.EXCLUDED
        version += newly_excluded or before.joined != after.joined
        check_against_scan(sets, nodes, config, leader)
        assert sets.membership_version == version


def sets_spares(sets: NodeSets, nodes: list[RunNode]) -> list[RunNode]:
    return [node for node in nodes if node.node_index in sets.spares]


def check_against_scan(sets: NodeSets, nodes: list[RunNode], config: RunConfig, leader: int) -> None:
    assert sets.joined == sum(node.joined for node in nodes)
    assert sets.pending == sum(node.pending for node in nodes)
    assert sets.unready == sum(node.unready for node in nodes)
    assert sets.unknown_locations == sum(node.pending and node.state is NodeState.EXPECTED for node in nodes)
    assert sets.excluded == {node.node_index for node in nodes if node.role is Role.EXCLUDED}
    assert sets.members == {node.node_index for node in nodes if node.joined and node.role is not Role.EXCLUDED}
    assert index_of(sets.available) == {node.node_index for node in nodes if node.available}
    assert index_of(sets.usable) == {node.node_index for node in nodes if node.joined and node.eligible}
    assert index_of(sets.possible) == {node.node_index for node in nodes if node.available or node.pending}
    assert len(sets.possible) == len(index_of(sets.possible))
    assert sets_spares(sets, nodes) == [node for node in nodes if node.available and node.role is Role.SPARE]
    assert sets.available.is_sufficient(leader) == available_pool(nodes, config, leader).sufficient
    assert sets.usable.is_sufficient(leader) == usable_pool(nodes, config, leader).sufficient
    known = not sets.unknown_locations
    assert sets.possible.is_sufficient(leader, by_location=known) == possible_pool(nodes, config, leader).sufficient
    for without in range(NODES):
        others = [node for node in nodes if node.node_index != without]
        assert sets.usable.is_sufficient(leader, without=(without,)) == usable_pool(others, config, leader).sufficient
        assert index_of(sets.usable) == {node.node_index for node in nodes if node.joined and node.eligible}


def test_a_node_that_moves_to_another_domain_counts_there() -> None:
    pool = PoolIndex(plan(spares=3, segment=2))
    pool.add(0, "a")
    pool.add(1, "b")
    assert not pool.is_sufficient(0)
    pool.add(1, "a")
    assert pool.is_sufficient(0) and len(pool) == 2
    pool.add(1, "a")  # again, without an effect
    assert pool.is_sufficient(0) and not pool.is_sufficient(0, without=(1,))


@pytest.mark.parametrize("number", [0, 7])
def test_a_node_that_is_not_in_the_pool_can_be_removed(number: int) -> None:
    pool = PoolIndex(plan())
    pool.remove(number)
    assert len(pool) == 0 and number not in pool


def test_only_whole_segments_count_as_nodes_come_and_go() -> None:
    pool = PoolIndex(plan(spares=1, segment=2))  # four nodes are needed
    for number, domain in enumerate("aaabb"):
        pool.add(number, domain)
    assert pool.is_sufficient(0)
    pool.remove(2)  # the third of domain a belongs to no segment
    assert pool.is_sufficient(0)
    pool.remove(4)
    assert not pool.is_sufficient(0)
    pool.add(2, "a")
    assert not pool.is_sufficient(0)
    pool.add(4, "b")
    assert pool.is_sufficient(0)


def test_the_leader_must_be_in_a_whole_segment() -> None:
    pool = PoolIndex(plan(spares=3, segment=2))  # two nodes are needed
    for number, domain in enumerate("abb"):
        pool.add(number, domain)
    assert pool.is_sufficient(1) and pool.is_sufficient(EXTERNAL_LEADER)
    assert not pool.is_sufficient(0) and pool.is_sufficient(0, by_location=False)


def test_a_host_counts_as_joined_when_its_node_has_arrived_not_when_it_becomes_a_spare() -> None:
    expected = RunNode(1, "n1")
    sets = NodeSets(plan(), [RunNode(0, "n0"), expected])
    spare = expected.with_role(Role.SPARE, None)
    sets.update(expected, spare)
    assert sets.joined_hosts == {}
    sets.update(spare, spare.with_state(NodeState.ARRIVED))
    assert sets.joined_hosts == {"n1": 1} and 1 in sets.spares
