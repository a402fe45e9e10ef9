"""The order of members, and the number of nodes that a job expects."""

from __future__ import annotations

from muster.torch.elastic_types import ElasticConfig, Member


def ordered(*members: Member) -> list[int]:
    return [member.key for member in sorted(members, key=lambda member: member.order)]


def test_members_with_a_node_index_come_first_in_its_order() -> None:
    assert ordered(Member(1, "a"), Member(2, "z", 10), Member(3, "z", 2), Member(4, "z", 0)) == [4, 3, 2, 1]


def test_members_without_one_are_ordered_by_the_numbers_in_their_hosts() -> None:
    assert ordered(Member(1, "n10"), Member(2, "n2"), Member(3, "n1-r3"), Member(4, "n1-r12")) == [3, 4, 2, 1]


def test_names_that_begin_with_digits_and_those_that_do_not_can_be_compared() -> None:
    assert ordered(Member(1, "n1"), Member(2, "10"), Member(3, "9"), Member(4, "")) == [4, 3, 2, 1]


def test_members_of_one_host_are_ordered_by_arrival() -> None:
    assert ordered(Member(7, "n1"), Member(3, "n1")) == [3, 7]


def test_a_job_expects_its_most_nodes_and_the_spares() -> None:
    assert ElasticConfig(min_nodes=1, max_nodes=4, spares=2).expected == 6
