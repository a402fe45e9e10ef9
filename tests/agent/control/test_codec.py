"""The codec: each annotation's JSON form, validation with the names of message and field, and the longest line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest

from muster.agent.control import messages as control
from muster.agent.control.codec import (
    MESSAGE_MAX_BYTES,
    Message,
    MessageError,
    MessageProtocol,
    MessageRegistry,
    field_types,
    wire_name,
)
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    HeartbeatAnswer,
    MembershipUpdate,
    ServiceStatus,
    StartCheck,
    Welcome,
)
from muster.election.membership import Membership, first_membership
from muster.lifecycle.services import ServiceState

SERVER, CLIENT = CONTROL_PROTOCOL.server, CONTROL_PROTOCOL.client


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    numbers: frozenset[int]


@dataclass(frozen=True)
class AllAnnotations(Message):
    """Has a field of each kind of annotation."""

    number: float
    text: str | None
    items: tuple[Inner, ...]
    mapping: Mapping[str, int]
    color: Color
    colors: tuple[Color, ...]
    inner: Inner | None
    anything: Any


@dataclass(frozen=True)
class Empty(Message):
    """Has no field."""


@dataclass(frozen=True)
class WithDefault(Message):
    """Has a field with a default."""

    code: int = 7


@dataclass(frozen=True)
class Unsendable(Message):
    """Has a field that JSON does not have."""

    numbers: set[int]


REGISTRY = MessageRegistry([AllAnnotations, Empty, WithDefault])
MESSAGE = AllAnnotations(
    number=1.5,
    text=None,
    items=(Inner(frozenset({1})), Inner(frozenset())),
    mapping={"a": 1},
    color=Color.RED,
    colors=(Color.BLUE, Color.RED),
    inner=Inner(frozenset({7, 1, 2, 3})),
    anything=[{"x": None}],
)
RECORD: dict[str, Any] = {
    "type": "all_annotations",
    "number": 1.5,
    "text": None,
    "items": [{"numbers": [[1, 1]]}, {"numbers": []}],
    "mapping": {"a": 1},
    "color": "red",
    "colors": ["blue", "red"],
    "inner": {"numbers": [[1, 3], [7, 7]]},
    "anything": [{"x": None}],
}


# -- encoding -------------------------------------------------------------------------------------------------------


def test_every_annotation_has_the_json_form_of_the_table() -> None:
    assert json.loads(REGISTRY.encode(MESSAGE)) == REGISTRY.record(MESSAGE) == RECORD
    assert REGISTRY.decode(json.dumps(RECORD).encode()) == MESSAGE


@pytest.mark.parametrize(("name", "value"), [("inner", None), ("text", "a"), ("number", 2)])
def test_each_type_of_a_union_and_an_int_for_a_float_are_accepted(name: str, value: object) -> None:
    message = REGISTRY.decode(json.dumps({**RECORD, name: value}).encode())
    assert message == replace(MESSAGE, **{name: value})


def test_a_message_without_fields_is_its_name() -> None:
    assert REGISTRY.encode(Empty()) == b'{"type": "empty"}\n'
    assert REGISTRY.decode(b'{"type": "empty"}') == Empty()


def test_a_field_with_a_default_is_sent_and_must_be_received() -> None:
    assert json.loads(REGISTRY.encode(WithDefault())) == {"type": "with_default", "code": 7}
    with pytest.raises(MessageError, match="with_default: lacks the field code"):
        REGISTRY.decode(b'{"type": "with_default"}')


def test_names_on_the_wire_are_in_snake_case_and_field_types_are_the_annotations() -> None:
    assert wire_name(AllAnnotations) == "all_annotations"
    assert field_types(WithDefault) == {"code": "int"}
    assert list(field_types(AllAnnotations)) == [name for name in RECORD if name != "type"]


def test_a_line_has_the_message_s_name_and_all_its_fields() -> None:
    assert json.loads(CLIENT.encode(HeartbeatAnswer(1.5, 3, 2.5))) == {
        "type": "heartbeat_answer",
        "at": 1.5,
        "version": 3,
        "time": 2.5,
    }


# -- validation -----------------------------------------------------------------------------------------------------

STATUS = json.loads(CLIENT.encode(ServiceStatus("web", ServiceState.READY, "", None, None, 0, 0)))
WELCOME = json.loads(SERVER.encode(Welcome(0, True, None, False, control.RayOptions(4, None, True, 2, True))))
UPDATE = json.loads(SERVER.encode(MembershipUpdate(Membership(0, 0, 0, 0, frozenset({0, 1})))))


def without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


@pytest.mark.parametrize(
    ("registry", "record", "error"),
    [
        (CLIENT, {**STATUS, "type": "servise"}, "unknown message type 'servise'"),
        (CLIENT, {**STATUS, "type": ["service"]}, "unknown message type"),
        (CLIENT, without(STATUS, "type"), "unknown message type None"),
        (CLIENT, WELCOME, "unknown message type 'welcome'"),
        (CLIENT, without(STATUS, "url"), "service_status: lacks the field url"),
        (CLIENT, {**STATUS, "uri": ""}, "service_status: has an unknown field 'uri'"),
        (CLIENT, {**STATUS, "service": None}, "service_status: service: must be str, not None"),
        (CLIENT, {**STATUS, "restarts": True}, "service_status: restarts: must be int, not True"),
        (CLIENT, {**STATUS, "restarts": 1.5}, "service_status: restarts: must be int, not 1.5"),
        (CLIENT, {**STATUS, "url": 7}, r"service_status: url: must be str \| None, not 7"),
        (CLIENT, {**STATUS, "state": "fine"}, "service_status: state: must be one of starting, .*, not 'fine'"),
        (CLIENT, {**STATUS, "state": []}, "service_status: state: must be one of"),
        (SERVER, {**WELCOME, "ray": "yes"}, "welcome: ray: must be an object with the fields of RayOptions, not 'yes'"),
        (SERVER, {**WELCOME, "ray": {**WELCOME["ray"], "nodes": "2"}}, "welcome: ray: nodes: must be int, not '2'"),
        (SERVER, {**WELCOME, "ray": without(WELCOME["ray"], "nodes")}, "welcome: ray: lacks the field nodes"),
        (SERVER, {**UPDATE, "membership": {**UPDATE["membership"], "roster": [0, 1]}}, "roster: must be an array of"),
        (SERVER, {"type": "start_instances", "services": ["a", 1], "cycle": 0}, "services: must be str, not 1"),
        (SERVER, {"type": "start_instances", "services": "a", "cycle": 0}, "services: must be an array"),
        (CLIENT, {"type": "service_load", "service": "a", "load": [], "cycle": 0}, "load: must be an object"),
    ],
)
def test_an_invalid_message_is_rejected_with_its_name_and_field(
    registry: MessageRegistry, record: dict[str, Any], error: str
) -> None:
    with pytest.raises(MessageError, match=error):
        registry.decode(json.dumps(record).encode() + b"\n")


@pytest.mark.parametrize("line", [b"hello\n", b"[]\n", b"7\n", b"\xff\n", b"[" * 100_000 + b"\n"], ids=repr)
def test_a_line_that_is_no_object_is_rejected(line: bytes) -> None:
    with pytest.raises(MessageError):
        CLIENT.decode(line)


def test_a_dataclass_with_a_field_that_cannot_be_sent_is_no_message() -> None:
    with pytest.raises(TypeError, match=r"a message cannot have a field of type set\[int\]"):
        MessageRegistry([Unsendable])


# -- long lines -----------------------------------------------------------------------------------------------------


def test_a_longer_message_is_an_error_of_its_sender() -> None:
    with pytest.raises(
        MessageError, match=rf"start_check would take \d+ bytes; a message may have {MESSAGE_MAX_BYTES}"
    ):
        SERVER.encode(StartCheck("x" * MESSAGE_MAX_BYTES, 1.0))


# -- versions -------------------------------------------------------------------------------------------------------


def test_another_version_is_described_with_both_sides_and_the_advice() -> None:
    protocol = MessageProtocol("test protocol", 3, "install the same release", REGISTRY, REGISTRY, REGISTRY)
    assert protocol.mismatch("n1", 3, "this node") is None
    expected = "n1 speaks test protocol 2, this node 3: install the same release"
    assert protocol.mismatch("n1", 2, "this node") == expected
    shown = protocol.mismatch("n1", "x" * 1000, "this node")
    assert shown is not None and len(shown) < 200


def test_a_membership_survives_encoding_and_decoding() -> None:
    sent = Membership(3, 4, 2, 17, frozenset({0, 1, 2, 4, 7, 8}), frozenset({3, 5}), frozenset(range(9)))
    assert SERVER.decode(SERVER.encode(MembershipUpdate(sent))) == MembershipUpdate(sent)


def test_ten_thousand_consecutive_nodes_take_no_more_space_than_three() -> None:
    assert len(SERVER.encode(MembershipUpdate(first_membership(10_000)))) < 200
