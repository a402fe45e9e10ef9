"""Who sent a request: a client of this machine, or a web page in a browser that runs on it.

The endpoint on loopback asks for no token, and a browser lets any page send requests there. Three things tell such a
request from a client's: a page can send JSON only after the server has allowed that (which ours never does), its
requests name the page's origin, and a page whose own name was rebound to loopback names itself as the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LOOPBACK_HOST = r"(localhost|127\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}|\[::1\])(:[0-9]{1,5})?"  # nginx reads it too
WRONG_HOST = "this endpoint is for clients of this machine: its URL is http://127.0.0.1:PORT (or localhost, or [::1])"
WRONG_ORIGIN = "this endpoint is not for web pages"
WRONG_TYPE = "the body must be JSON, and say so: Content-Type: application/json"
JSON = "application/json"
_HOST = re.compile(LOOPBACK_HOST, re.IGNORECASE)


def foreign(headers: Mapping[str, str]) -> str | None:
    """Why a request without a token may be a web page's; None when it cannot be. No page can leave the host out.

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
    """Whether the body is said to be JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == JSON
