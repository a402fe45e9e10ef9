"""Who may come in: a link that works once, a cookie for the session, and what a request must say to change something.

On a shared login node every user can connect to our port, and every page that the user's browser shows may send us
requests. Pure but for the random secrets.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
KEY_HEADER = "X-Muster-Key"
MOST_SESSIONS = 32


def _secret() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class UiSession:
    """One browser that came in. `key` is known to our own pages alone: no other origin can read it, or send it."""

    cookie: str = field(default_factory=_secret)
    key: str = field(default_factory=_secret)


class Auth:
    """The links that still work and the sessions that they gave."""

    def __init__(self, name: str, scrape_token: str | None = None) -> None:
        """`name` is the cookie's: two servers on one loopback must not take each other's place."""
        self.cookie_name, self._scrape_token = name, scrape_token
        self._links: set[str] = set()
        self._sessions: list[UiSession] = []

    def new_link(self) -> str:
        """A token that lets one browser in. The one before is of no use any more."""
        self._links = {_secret()}
        return next(iter(self._links))

    def enter(self, token: str) -> UiSession | None:
        """A session for a token that was not used yet."""
        known = [link for link in self._links if hmac.compare_digest(link.encode(), token.encode())]
        if not known:
            return None
        self._links -= set(known)
        self._sessions = [*self._sessions[-MOST_SESSIONS + 1 :], UiSession()]
        return self._sessions[-1]

    def session(self, headers: Mapping[str, str]) -> UiSession | None:
        """The session that the request's cookie belongs to."""
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
        """Prometheus has no browser: it shows the token that it was given."""
        if not self._scrape_token:
            return False
        wanted = f"Bearer {self._scrape_token}"
        return hmac.compare_digest(wanted.encode(), headers.get("Authorization", "").encode())


def is_loopback(headers: Mapping[str, str]) -> bool:
    """Whether the request was meant for us: a name of another's that points to loopback is not ours. Any port will do,
    as the user's end of a tunnel may have another."""
    host = headers.get("Host", "").lower()
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return name in LOOPBACK


def may_change(session: UiSession, headers: Mapping[str, str]) -> bool:
    """Whether a request to change something comes from our own page. The cookie is not enough: a site is no origin."""
    from_us = headers.get("Origin", "").lower() == f"http://{headers.get('Host', '').lower()}"
    fetched = headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
    key = hmac.compare_digest(session.key.encode(), headers.get(KEY_HEADER, "").encode())
    return from_us and fetched and key
