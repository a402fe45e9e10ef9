"""Access to the run directory that an agent cannot do without: tried again while its filesystem fails.

A server of a network filesystem may be gone for a minute; that must not cost a node, nor the run.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from muster.rundir.filesystem_type import probe_filesystem_type

logger = logging.getLogger(__name__)

T = TypeVar("T")

FILESYSTEM_TIMEOUT_S = 120.0  # twice as long as a server that restarts is usually gone
RETRY_INTERVAL_S = 1.0
# Answers of a server that restarts or cannot be reached. All others, such as EACCES, stay as they are.
SERVER_ERRORS = frozenset(
    [
        *(errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENOMEM),
        *(errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ESHUTDOWN),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOLINK, errno.ECOMM),
    ]
)
TRANSIENT_ERRORS = SERVER_ERRORS | {errno.ENOSPC, errno.EDQUOT}


class RunDirectoryError(Exception):
    """The filesystem of the run directory has failed; the message names it."""


async def retried(
    path: str,
    work: Callable[..., T],
    *args: Any,
    timeout: float = FILESYSTEM_TIMEOUT_S,
    run: Callable[..., Awaitable[T]] = asyncio.to_thread,
) -> T:
    """Return the result of file operations on `path`, done on a thread and repeated while the filesystem fails.

    `run` runs the work on its thread. Raises RunDirectoryError after `timeout` seconds, and at once for an error that
    will not pass.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return await run(work, *args)
        except OSError as error:
            if error.errno not in TRANSIENT_ERRORS or time.monotonic() >= deadline:
                raise RunDirectoryError(await asyncio.to_thread(describe_failure, path, error)) from error
            logger.warning("%s: %s; trying again", path, error.strerror)
        await asyncio.sleep(RETRY_INTERVAL_S)


def describe_failure(path: str, error: OSError) -> str:
    """Return a sentence that names the file, the filesystem and its error."""
    kind = probe_filesystem_type(path)
    return f"the filesystem of the run directory ({kind}) failed: {path}: {error.strerror or error}"
