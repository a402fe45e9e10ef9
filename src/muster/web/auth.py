"""Access control: one-time links, session cookies, and the conditions for requests that change something.

On a shared login node every user can connect to the port, and every site open in the user's browser can send requests
to it. Pure except for the random secrets.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
KEY_HEADER = "X-Muster-Key"
MAX_SESSIONS = 32


def _secret() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class UiSession:
    """The session of one browser. Only this server's pages know `key`: no other origin can read or send it."""

    cookie: str = field(default_factory=_secret)
    key: str = field(default_factory=_secret)


class Auth:
    """The unused links, and the sessions started with links."""

    def __init__(self, cookie_name: str, scrape_token: str | None = None) -> None:
        """`cookie_name` differs per server, so that servers on one loopback do not replace each other's cookies."""
        self.cookie_name, self._scrape_token = cookie_name, scrape_token
        self._links: set[str] = set()
        self._sessions: list[UiSession] = []

    def new_link(self) -> str:
        """Return a token that admits one browser; the previous unused token becomes invalid."""
        self._links = {_secret()}
        return next(iter(self._links))

    def enter(self, token: str) -> UiSession | None:
        """Start a session with an unused token; return None for any other token."""
        known = [link for link in self._links if hmac.compare_digest(link.encode(), token.encode())]
        if not known:
            return None
        self._links -= set(known)
        self._sessions = [*self._sessions[-MAX_SESSIONS + 1 :], UiSession()]
        return self._sessions[-1]

    def session(self, headers: Mapping[str, str]) -> UiSession | None:
        """Return the session of the request's cookie, or None."""
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("Cookie", ""))
        except CookieError:
            return None
        given = cookies[self.cookie_name].value if self.cookie_name in cookies else ""
        for session in self._sessions:
            if hmac.compare_digest(session.cookie.encode(), given.encode()):
                return session
        return None

    def cookie(self, session: UiSession) -> str:
        return f"{self.cookie_name}={session.cookie}; HttpOnly; SameSite=Strict; Path=/"

    def may_scrape(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request has the bearer token for /metrics."""
        if not self._scrape_token:
            return False
        wanted = f"Bearer {self._scrape_token}"
        return hmac.compare_digest(wanted.encode(), headers.get("Authorization", "").encode())


def is_loopback(headers: Mapping[str, str]) -> bool:
    """Return whether the Host header names loopback; refuses foreign names that resolve to it (DNS rebinding).

    Any port is accepted, because the local end of a tunnel may have another.
    """
    host = headers.get("Host", "").lower()
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return name in LOOPBACK


def may_change(session: UiSession, headers: Mapping[str, str]) -> bool:
    """Return whether a request that changes something comes from a page of this server.

    The cookie is not enough: browsers send it from all ports of the host.
    """
    same_origin = headers.get("Origin", "").lower() == f"http://{headers.get('Host', '').lower()}"
    same_site = headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
    key = hmac.compare_digest(session.key.encode(), headers.get(KEY_HEADER, "").encode())
    return same_origin and same_site and key
