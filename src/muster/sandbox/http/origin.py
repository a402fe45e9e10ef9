"""Detection of requests that a web page sends through a browser on this machine.

The endpoint on loopback needs no token, and browsers let any page send requests there. Three properties distinguish
them from requests of clients: a page can send JSON only after the server has allowed it (this one never does), its
requests have an Origin header, and a page whose name was rebound to loopback has that name in the Host header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LOOPBACK_HOST = r"(localhost|127\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}|\[::1\])(:[0-9]{1,5})?"
WRONG_HOST = "this endpoint is for clients of this machine: its URL is http://127.0.0.1:PORT (or localhost, or [::1])"
WRONG_ORIGIN = "this endpoint is not for web pages"
WRONG_TYPE = "the body must be JSON, sent with Content-Type: application/json"
JSON = "application/json"
_HOST = re.compile(LOOPBACK_HOST, re.IGNORECASE)


def foreign(headers: Mapping[str, str]) -> str | None:
    """Return why a request without a token may come from a web page, else None. No page can omit the Host header.

    >>> foreign({"host": "localhost:6000"}), foreign({}), foreign({"host": "127.0.0.1.example.com"}) == WRONG_HOST
    (None, None, True)
    >>> foreign({"host": "localhost:6000", "origin": "http://example.com"})
    'this endpoint is not for web pages'
    """
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not _HOST.fullmatch(host):
        return WRONG_HOST
    if origin is not None and origin.lower() != f"http://{(host or '').lower()}":
        return WRONG_ORIGIN
    return None


def is_json(headers: Mapping[str, str]) -> bool:
    """Return whether the Content-Type is JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == JSON
