"""HTTP requests and answers as values, so that handlers work without a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

# Pages load and run only files of this server; no site may frame them, cache answers or receive their URLs.
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
    """A request; header names are Capitalised-Like-This."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> list[str]:
        """Return the unquoted parts of the path."""
        return [unquote(part, errors="replace") for part in urlsplit(self.target).path.split("/") if part]

    def query(self, name: str, default: str = "") -> str:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True).get(name, [default])[0]

    def number(self, name: str, default: int) -> int:
        """Return a whole number from the query, or the default if it is missing or not a number."""
        try:
            return int(self.query(name, str(default))[:20])
        except ValueError:
            return default


@dataclass(frozen=True)
class Answer:
    """A status and a body, as bytes or as an iterator of pieces with an optional `length`."""

    status: int
    body: bytes | Iterator[bytes]
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value, separators=(",", ":")).encode(), "application/json")


def text_answer(status: int, text: str) -> Answer:
    return Answer(status, text.encode("utf-8", "replace"))


def page_answer(text: str, **headers: str) -> Answer:
    return Answer(200, text.encode("utf-8", "replace"), "text/html; charset=utf-8", headers)
