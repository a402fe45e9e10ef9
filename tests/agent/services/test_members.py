"""Members of sandboxes: complete lists and changes, and their size."""

from __future__ import annotations

import pytest

from muster.agent.control.messages import CONTROL_PROTOCOL, ServiceMembers
from muster.agent.services.members import PACKED_FROM, MemberList, updated


def endpoints(count: int, first: int = 0) -> frozenset[str]:
    numbers = range(first, first + count)
    return frozenset(f"http://10.0.{number >> 8}.{number & 255}:{20000 + number * 37 % 9973}" for number in numbers)


def size(message: ServiceMembers) -> int:
    return len(CONTROL_PROTOCOL.server.encode(message))


@pytest.mark.parametrize("count", [0, 1, PACKED_FROM, 1000])
def test_a_complete_list_replaces_whatever_was_known(count: int) -> None:
    wanted = MemberList(7, endpoints(count))
    message = wanted.complete("box", 0)
    decoded = CONTROL_PROTOCOL.server.decode(CONTROL_PROTOCOL.server.encode(message))
    assert isinstance(decoded, ServiceMembers)
    for known in (None, MemberList(3, endpoints(5, first=5000))):
        assert updated(known, decoded) == wanted


@pytest.mark.parametrize("added", [0, 3, PACKED_FROM])
def test_a_change_is_applied_to_the_version_before(added: int) -> None:
    before = MemberList(7, endpoints(1000))
    after = MemberList(8, endpoints(990, first=10) | endpoints(added, first=5000))
    assert updated(before, after.since(before, "box", 0)) == after


def test_a_change_of_another_version_is_not_applied() -> None:
    before, after = MemberList(7, endpoints(100)), MemberList(8, endpoints(99))
    message = after.since(before, "box", 0)
    assert updated(None, message) is None and updated(MemberList(6, endpoints(100)), message) is None


def test_a_list_of_which_little_is_left_is_sent_completely() -> None:
    assert MemberList(8, endpoints(10)).since(MemberList(7, endpoints(1000)), "box", 0).base is None


def test_the_size_of_a_change_does_not_depend_on_the_number_of_members() -> None:
    sizes = []
    for count in (100, 10_000):
        before, after = MemberList(7, endpoints(count)), MemberList(8, endpoints(count - 1))
        sizes.append(size(after.since(before, "box", 0)))
    assert sizes[1] < 2 * sizes[0]


def test_a_complete_list_takes_less_than_half_of_its_text() -> None:
    members = endpoints(10_000)
    assert size(MemberList(1, members).complete("box", 0)) < sum(map(len, members)) / 2
