"""Read and write large JSON in small steps, for a thread beside the event loop.

The functions of `json` keep all other threads waiting until a whole document is done: 10 ms and more for each MB. Here
long strings, of which large documents consist, are converted slice by slice; the rest of a document is bounded.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

LARGE = 1 << 20  # bytes of a document that is read or written in a thread
SLICE = 1 << 16  # bytes of a string that are converted in one step
LONG_STRING = 1 << 10  # bytes of a string that is converted separately
REST_LIMIT = 4 << 20  # bytes of a document without its long strings
VALUES_LIMIT = 200_000  # values of a document: each takes far more memory than text
QUOTES_LIMIT = 4_000_000  # in a document, which are searched one by one
ESCAPE = 12  # bytes of the longest escape sequence, a pair of surrogates
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


def load(data: bytes) -> Any:
    """Return the value of a document; raise ValueError if it is not JSON or has too many short values."""
    if data.count(b'"') > QUOTES_LIMIT:
        raise ValueError("too many strings: send several smaller requests")
    mark = secrets.token_hex(8)
    strings: list[str] = []
    parts: list[bytes] = []
    length = values = end = 0
    for start, stop in _long_strings(data):
        parts += [data[end:start], f'"{mark}{len(strings)}"'.encode()]
        strings.append(_text(data, start + 1, stop))
        length += start - end
        values += _count_values(data, end, start)
        end = stop + 1
        _check(length, values)
    _check(length + len(data) - end, values + _count_values(data, end, len(data)))
    try:
        rest = json.loads(b"".join([*parts, data[end:]]))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _restored(rest, mark, strings)


def _check(length: int, values: int) -> None:
    if length > REST_LIMIT or values > VALUES_LIMIT:
        raise ValueError(f"more than {VALUES_LIMIT} values or {REST_LIMIT >> 20} MB of them: send several requests")


def _count_values(data: bytes, start: int, end: int) -> int:
    return data.count(b",", start, end) + data.count(b"[", start, end) + data.count(b"{", start, end)


def _long_strings(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the positions of the quotes of each long string."""
    start = data.find(b'"')
    while start != -1:
        stop = start
        while True:
            stop = data.find(b'"', stop + 1)
            if stop == -1:
                raise ValueError("a string has no end")
            if not _backslashes_before(data, stop, start) % 2:
                break
        if stop - start > LONG_STRING:
            yield start, stop
        start = data.find(b'"', stop + 1)


def _backslashes_before(data: bytes, place: int, start: int) -> int:
    count = 0
    while place - count - 1 > start and data[place - count - 1] == _BACKSLASH:
        count += 1
    return count


def _text(data: bytes, start: int, end: int) -> str:
    """Return the string between two quotes."""
    parts: list[str] = []
    while start < end:
        stop = _cut(data, start, min(start + SLICE, end), end)
        part: str = json.loads(b'"%b"' % data[start:stop])
        if parts and "\ud800" <= parts[-1][-1:] <= "\udbff" and "\udc00" <= part[:1] <= "\udfff":
            pair = (parts[-1][-1] + part[0]).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            parts[-1], part = parts[-1][:-1], pair + part[1:]
        parts.append(part)
        start = stop
    return "".join(parts)


def _cut(data: bytes, start: int, wanted: int, end: int) -> int:
    """Return a position near `wanted` that divides neither a character nor an escape sequence."""
    if wanted == end:
        return end
    escape = data.rfind(b"\\", max(start, wanted - ESCAPE), wanted)
    if escape != -1 and not _backslashes_before(data, escape, start - 1) % 2:
        return escape if escape > start else min(end, escape + SLICE)
    while data[wanted] & 0xC0 == 0x80 and wanted < end:  # within a character
        wanted += 1
    return wanted


def _restored(value: Any, mark: str, strings: list[str]) -> Any:
    """Return the value with the long strings instead of their marks."""
    if isinstance(value, str):
        return strings[int(value[len(mark) :])] if value.startswith(mark) else value
    if isinstance(value, list):
        return [_restored(one, mark, strings) for one in value]
    if isinstance(value, dict):
        return {_restored(key, mark, strings): _restored(one, mark, strings) for key, one in value.items()}
    return value


def text_length(value: Any) -> int:
    """Return the length of all strings in a value, in characters."""
    if isinstance(value, str):
        return len(value)
    return sum(map(text_length, value.values())) if isinstance(value, dict) else 0


def dump(value: Any) -> bytes:
    """Return the document of a value whose dictionaries have strings as keys."""
    return b"".join(_parts(value))


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > SLICE:
        yield b'"'
        for start in range(0, len(value), SLICE):
            yield json.dumps(value[start : start + SLICE])[1:-1].encode()
        yield b'"'
    elif isinstance(value, dict) and value:
        before = b"{"
        for key, one in value.items():
            yield before + json.dumps(key).encode() + b": "
            yield from _parts(one)
            before = b", "
        yield b"}"
    else:
        yield json.dumps(value).encode()
