"""Secrets derived from the run's token."""

from __future__ import annotations

import hashlib
import hmac


def derive_ray_token(token: bytes) -> bytes:
    """Return the token of the run's Ray cluster. Ray sends its token over the network; the run's own never travels."""
    return hmac.new(token, b"ray", hashlib.sha256).hexdigest().encode()


def derive_endpoint_token(token: bytes) -> str:
    """Return the token of the run's endpoints. Clients send it, and proxies pass it on to the replicas."""
    return hmac.new(token, b"endpoint", hashlib.sha256).hexdigest()
