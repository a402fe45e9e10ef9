"""The limit of open files, and the connections that it leaves for each endpoint."""

from __future__ import annotations

import resource

from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.settings import SandboxSettings

FILES_PER_WORKER = 8
CONNECTION_FILES_MIN = 512
CONNECTIONS_MAX = 4096  # of one endpoint: a single client of NeMo-Skills may open 2,048
SHARES = 3  # connections of clients, of other nodes, and to other nodes


def allow_open_files(settings: SandboxSettings) -> int:
    """Raise the soft limit of open files to what this server can use; return the connections that an endpoint may have.

    Raise SandboxError if the hard limit is too low for the workers and sessions.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = FILES_PER_WORKER * (settings.workers_max + settings.sessions_max)
    least, wanted = own + CONNECTION_FILES_MIN, own + CONNECTION_FILES_MIN + SHARES * CONNECTIONS_MAX
    if hard != resource.RLIM_INFINITY and least > hard:
        raise SandboxError(
            f"{least} open files are needed, {hard} are allowed: use fewer workers or sessions, or raise ulimit -n"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = wanted if soft == resource.RLIM_INFINITY else soft
    return min(CONNECTIONS_MAX, (left - own) // SHARES)
