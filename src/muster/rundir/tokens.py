"""Secrets derived from the run's token."""

from __future__ import annotations

import hashlib
import hmac


def derive_ray_token(token: bytes) -> bytes:
    """Return the token of the run's Ray cluster. Ray sends its token over the network; the run's own never travels."""
    return hmac.new(token, b"ray", hashlib.sha256).hexdigest().encode()
