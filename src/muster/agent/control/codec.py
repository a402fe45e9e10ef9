"""Messages as JSON lines: every message is a frozen dataclass, and a registry encodes, decodes and validates them.

A line is a JSON object with the message's name in `type` and all its fields, also those with a default. A line of
another form is rejected as a whole: a handler never gets a message with a missing, unknown or wrongly typed field.

    annotation                      JSON                        value
    int, float, str, bool, None     itself                      itself; an int is a float as well, a bool is no int
    A | B                           what any of them writes     the first that accepts it
    tuple[T, ...]                   array                       tuple
    Mapping[str, T], dict[str, T]   object                      dict
    frozenset[int]                  array of ranges [a, b]      frozenset: ten thousand node indexes take little space
    an Enum                         its value                   the member
    a dataclass                     object with its fields      the dataclass
    Any                             anything                    itself

Annotations are read as text, since Python 3.9 cannot evaluate `int | None`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

MESSAGE_MAX_BYTES = 1 << 20  # of a line: the endpoints of 10,000 sandboxes take 0.6 MB


class MessageError(ValueError):
    """A line is no valid message, or a message is too long to be sent."""


class Message:
    """Base of all messages. Subclasses are frozen dataclasses; their docstrings state the purpose."""

    __slots__ = ()


@dataclass(frozen=True)
class _Codec:
    """Converts the values of one annotation."""

    name: str  # the annotation, for errors
    plain: frozenset[type]  # types of JSON values that are the field's value already
    encode: Callable[[Any], Any] | None = None  # None: JSON writes the value itself
    decode: Callable[[Any], Any] | None = None  # of values that are not plain; raises MessageError

    def read(self, value: Any) -> Any:
        if type(value) in self.plain:
            return value
        if self.decode is None:
            raise MessageError(f"must be {self.name}, not {_shown(value)}")
        return self.decode(value)


class _Fields:
    """The fields of one dataclass."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        module = vars(sys.modules[cls.__module__])
        self.codecs = {field.name: _codec(str(field.type), module) for field in fields(cls)}
        self.names = frozenset(self.codecs)
        self._checks = [(name, codec.plain, codec) for name, codec in self.codecs.items()]
        self._encoders = [(name, codec.encode) for name, codec in self.codecs.items() if codec.encode is not None]

    def record(self, value: Any) -> dict[str, Any]:
        """Return the fields of the dataclass as JSON values."""
        record = dict(value.__dict__)
        for name, encode in self._encoders:
            record[name] = encode(record[name])
        return record

    def check(self, record: dict[str, Any]) -> None:
        """Replace JSON values by the fields' values; raise MessageError with the name of the first wrong field."""
        if record.keys() != self.names:
            missing, unknown = sorted(self.names - record.keys()), sorted(record.keys() - self.names)
            lacks = [f"lacks the field {name}" for name in missing]
            raise MessageError("; ".join(lacks + [f"has an unknown field {_shown(name)}" for name in unknown]))
        for name, plain, codec in self._checks:
            if type(record[name]) not in plain:
                try:
                    record[name] = codec.read(record[name])
                except MessageError as error:
                    raise MessageError(f"{name}: {error}") from None

    def value(self, record: Any) -> Any:
        """Return the dataclass with these fields."""
        if type(record) is not dict:
            raise MessageError(f"must be an object with the fields of {self.cls.__name__}, not {_shown(record)}")
        self.check(record)
        return self.cls(**record)


class MessageRegistry:
    """The messages that one side of a connection may send, by their names on the wire."""

    def __init__(self, types: Iterable[type[Message]]) -> None:
        self.types = tuple(types)
        self._fields = {cls: _Fields(cls) for cls in self.types}
        self._names = {cls: wire_name(cls) for cls in self.types}
        self._by_name = {name: self._fields[cls] for cls, name in self._names.items()}

    def record(self, message: Message) -> dict[str, Any]:
        """Return the message as a JSON object."""
        cls = type(message)
        return {"type": self._names[cls], **self._fields[cls].record(message)}

    def encode(self, message: Message) -> bytes:
        """Return the line that is sent. Raise MessageError if it would be too long."""
        line = json.dumps(self.record(message)).encode() + b"\n"
        if len(line) > MESSAGE_MAX_BYTES:
            name = self._names[type(message)]
            raise MessageError(f"{name} would take {len(line)} bytes; a message may have {MESSAGE_MAX_BYTES}")
        return line

    def decode(self, line: bytes) -> Message:
        """Return the message of a line. Raise MessageError, with the names of message and field, if it is invalid."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise MessageError(f"not JSON: {_shown(line)}") from None
        return self.from_record(record)

    def from_record(self, record: Any) -> Message:
        """Return the message of a JSON object, which is changed."""
        if type(record) is not dict:
            raise MessageError(f"not a JSON object: {_shown(record)}")
        name = record.pop("type", None)
        found = self._by_name.get(name) if type(name) is str else None
        if found is None:
            raise MessageError(f"unknown message type {_shown(name)}")
        try:
            found.check(record)
        except MessageError as error:
            raise MessageError(f"{name}: {error}") from None
        message: Message = object.__new__(found.cls)
        message.__dict__.update(record)  # as the constructor of a frozen dataclass does, in a third of the time
        return message


@dataclass(frozen=True)
class MessageProtocol:
    """The messages of both sides: the `server` listens, the `client` connects."""

    name: str  # for errors
    version: int  # another version is rejected in the handshake; grows with every change of a message
    advice: str  # for errors: what must be the same on both sides
    server: MessageRegistry
    client: MessageRegistry
    greeting: MessageRegistry  # the client's part of the handshake
    server_name: str = "the leader"  # for errors

    def mismatch(self, peer: str, version: object, own: str) -> str | None:
        """Return the error if the peer speaks another version."""
        if version == self.version:
            return None
        return f"{peer} speaks {self.name} {_shown(version)}, {own} {self.version}: {self.advice}"


def wire_name(cls: type[Message]) -> str:
    """Return the message's name on the wire: that of the class in snake case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def field_types(cls: type[Message]) -> dict[str, str]:
    """Return the annotations of the message's fields by name."""
    return {field.name: str(field.type) for field in fields(cls)}  # type: ignore[arg-type]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


# -- codecs of annotations ----------------------------------------------------------------------------------------

_PLAIN: dict[str, frozenset[type]] = {
    "int": frozenset({int}),
    "float": frozenset({float, int}),
    "str": frozenset({str}),
    "bool": frozenset({bool}),
    "None": frozenset({type(None)}),
    "Any": frozenset({int, float, str, bool, type(None), list, dict}),
}


def _codec(annotation: str, module: dict[str, Any]) -> _Codec:
    return _codec_of(ast.parse(annotation, mode="eval").body, module)


def _codec_of(node: ast.expr, module: dict[str, Any]) -> _Codec:
    name = ast.unparse(node)
    if name in _PLAIN:
        return _Codec(name, _PLAIN[name])
    if isinstance(node, ast.BinOp):
        return _union(name, [_codec_of(node.left, module), _codec_of(node.right, module)])
    if name == "frozenset[int]":
        return _Codec(name, frozenset(), _ranges, _numbers)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        first, second = node.slice.elts
        if ast.unparse(node.value) == "tuple" and ast.unparse(second) in ("...", "Ellipsis"):
            return _array(name, _codec_of(first, module))
        if ast.unparse(node.value) in ("dict", "Mapping") and ast.unparse(first) == "str":
            return _object(name, _codec_of(second, module))
    cls = module.get(name)
    if isinstance(cls, type) and issubclass(cls, Enum):
        return _enum(name, cls)
    if isinstance(cls, type) and is_dataclass(cls):
        nested = _Fields(cls)
        return _Codec(name, frozenset(), nested.record, nested.value)
    raise TypeError(f"a message cannot have a field of type {name}")


def _union(name: str, members: Sequence[_Codec]) -> _Codec:
    """At most one member is written other than as itself: such as a dataclass or None."""
    plain = frozenset[type]().union(*(member.plain for member in members))
    others = [member for member in members if member.decode is not None]
    if not others:
        return _Codec(name, plain)
    (other,) = others
    encode = other.encode
    if encode is None:
        return _Codec(name, plain, None, other.decode)
    return _Codec(name, plain, lambda value: value if type(value) in plain else encode(value), other.decode)


def _array(name: str, item: _Codec) -> _Codec:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise MessageError(f"must be an array for {name}, not {_shown(value)}")
        plain = item.plain
        return tuple(one if type(one) in plain else item.read(one) for one in value)

    encode = item.encode
    return _Codec(name, frozenset(), None if encode is None else lambda value: [encode(one) for one in value], decode)


def _object(name: str, item: _Codec) -> _Codec:
    def decode(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise MessageError(f"must be an object for {name}, not {_shown(value)}")
        return {key: item.read(one) for key, one in value.items()}

    return _Codec(name, frozenset(), dict, decode)


def _enum(name: str, cls: type[Enum]) -> _Codec:
    def decode(value: Any) -> Enum:
        try:
            return cls(value)
        except ValueError:
            allowed = ", ".join(str(member.value) for member in cls)
            raise MessageError(f"must be one of {allowed}, not {_shown(value)}") from None

    return _Codec(name, frozenset(), lambda member: member.value, decode)


@lru_cache(maxsize=8)  # the same roster is sent to each of ten thousand agents that join
def _ranges(numbers: frozenset[int]) -> list[list[int]]:
    """Return the first and last number of each consecutive range. The result must not be changed."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _numbers(ranges: Any) -> frozenset[int]:
    if type(ranges) is not list or not all(
        type(one) is list and len(one) == 2 and type(one[0]) is type(one[1]) is int for one in ranges
    ):
        raise MessageError(f"must be an array of ranges [first, last], not {_shown(ranges)}")
    return frozenset(number for first, last in ranges for number in range(first, last + 1))
