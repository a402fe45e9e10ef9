"""How many files the server may have open, and how many connections that leaves for each endpoint."""

from __future__ import annotations

import resource

from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.settings import SandboxSettings

FILES_PER_WORKER, FILES_OF_CLIENTS = 8, 512
CONNECTIONS_MOST = 4096  # of one endpoint: a client of NeMo-Skills alone may open 2,048
SHARES = 3  # of what is left for connections: clients', other nodes', and ours to other nodes


def allow_open_files(settings: SandboxSettings) -> int:
    """Allow as many as can be needed; each worker and session takes a handful of ours, each client one.

    Returns how many connections an endpoint may have.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = FILES_PER_WORKER * (settings.workers_max + settings.sessions_max)
    least, wanted = own + FILES_OF_CLIENTS, own + FILES_OF_CLIENTS + SHARES * CONNECTIONS_MOST
    if hard != resource.RLIM_INFINITY and least > hard:
        raise SandboxError(
            f"{least} open files would be needed, {hard} are allowed: fewer workers or sessions, or ulimit -n"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = wanted if soft == resource.RLIM_INFINITY else soft
    return min(CONNECTIONS_MOST, (left - own) // SHARES)
