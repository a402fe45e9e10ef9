"""A request and an answer, as values: what a path answers can be said without a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

# Nothing but our own files runs or is loaded; nobody may frame us, keep our answers or learn our addresses.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Request:
    """What was asked for, the headers by their Capitalised-Names; `path` in its parts, as they were before quoting."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> list[str]:
        return [unquote(part, errors="replace") for part in urlsplit(self.target).path.split("/") if part]

    def query(self, name: str, default: str = "") -> str:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True).get(name, [default])[0]

    def number(self, name: str, default: int) -> int:
        """A whole number of the query; what is none counts as not given."""
        try:
            return int(self.query(name, str(default))[:20])
        except ValueError:
            return default


@dataclass(frozen=True)
class Answer:
    """A status, and a body that is whole or comes piece by piece; `length` of the latter, where it is known."""

    status: int
    body: bytes | Iterator[bytes]
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value, separators=(",", ":")).encode(), "application/json")


def as_text(status: int, text: str) -> Answer:
    return Answer(status, text.encode("utf-8", "replace"))


def as_page(text: str, **headers: str) -> Answer:
    return Answer(200, text.encode("utf-8", "replace"), "text/html; charset=utf-8", headers)
