"""Who sent a request: the owner of its sessions and workspaces, and the client that shares the slots with others.

Sessions and workspaces belong to the user whose process sent the request, as the kernel knows it, and if it has an
X-Client-Secret header to those who know that secret. Between nodes the gateway passes the user on.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from muster.sandbox.http.codec import HttpRequest

USER_HEADER = "x-muster-user"  # of the gateway: clients cannot send it
SECRET_HEADER = "x-client-secret"
CLIENT_HEADER = "x-client-id"


@dataclass(frozen=True)
class Sender:
    """`owner` is empty for the user of the server without a secret; `headers` say the same to other nodes."""

    owner: str
    client: str
    headers: dict[str, str]


def sender_of(request: HttpRequest, is_from_gateway: bool) -> Sender:
    """Return the sender of a request to this node; `is_from_gateway`: it has the token, so its user is believed."""
    own = str(os.getuid())
    found = own if request.user is None else str(request.user)
    user = request.headers.get(USER_HEADER, own) if is_from_gateway else found
    secret = request.headers.get(SECRET_HEADER, "")
    digest = hashlib.sha256(secret.encode()).hexdigest() if secret else ""
    owner = "" if user == own and not secret else f"{user} {digest}"
    headers = {USER_HEADER: user, **({SECRET_HEADER: secret} if secret else {})}
    return Sender(owner, request.headers.get(CLIENT_HEADER) or owner, headers)
