"""A node's mailbox for control requests: files that programs write, see muster/control_requests.py.

state      leaves on                                to
open       a program has written a request          sent: the leader gets a ControlRequest
sent       the leader sends ControlRecorded         (the file is removed, and the program's call returns)
(either)   the cycle is stopped on this node        closed: the directory is removed

The first program that writes creates the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable

from muster.agent.control.codec import Message
from muster.agent.control.messages import ControlRequest
from muster.lifecycle.control import ControlKind

logger = logging.getLogger(__name__)

REQUEST_POLL_S = 0.3  # of a directory on the node's disk
MAX_REQUEST_BYTES = 64 * 1024
MAX_REASON_CHARACTERS = 500
_FILE_NAME = re.compile(r"([0-9]+-[0-9a-f]+)\.json")
NEXT_RESTART = "next_restart"


class RequestMailbox:
    """Sends the requests of one cycle to the leader. Files are read on a thread: a disk may hang."""

    def __init__(self, directory: str, cycle: int, send: Callable[[Message], None]) -> None:
        """`send` sends a message to the leader."""
        self._directory, self._cycle, self._send = directory, cycle, send
        self._sent: set[str] = set()  # names of files
        self._task = asyncio.create_task(self._run())
        self._removals: set[asyncio.Future[None]] = set()

    def on_recorded(self, ids: Iterable[str]) -> None:
        """Remove the requests that the leader has recorded."""
        removal = asyncio.ensure_future(asyncio.to_thread(self._remove, list(ids)))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def close(self) -> None:
        """Send what was written last, and remove the directory."""
        self._task.cancel()
        await asyncio.gather(self._task, *self._removals, return_exceptions=True)
        await self._send_new()
        await asyncio.to_thread(self._remove_directory)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REQUEST_POLL_S)
            await self._send_new()

    async def _send_new(self) -> None:
        for request in await asyncio.to_thread(self._read_new):
            logger.info("a program requests %s: %s", request.kind.value, request.reason)
            self._send(request)

    def _read_new(self) -> list[ControlRequest]:
        try:
            names = sorted(os.listdir(self._directory))
        except OSError:
            return []
        found = []
        for name in names:
            match = _FILE_NAME.fullmatch(name)
            if match is None or name in self._sent:
                continue
            self._sent.add(name)
            request = self._read(match[1])
            if request is not None:
                found.append(request)
        return found

    def _read(self, request_id: str) -> ControlRequest | None:
        path = os.path.join(self._directory, f"{request_id}.json")
        try:
            with open(path, encoding="utf-8") as file:
                record = json.loads(file.read(MAX_REQUEST_BYTES))
            kind, rank = ControlKind(record["kind"]), str(record.get("rank"))
            reason = " ".join(str(record["reason"]).split())[:MAX_REASON_CHARACTERS]
            at_once = record.get("when") != NEXT_RESTART
            return ControlRequest(request_id, kind, reason, at_once, int(rank) if rank.isdigit() else None, self._cycle)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s is no control request: %r", path, error)
            return None

    def _remove(self, ids: list[str]) -> None:
        for request_id in ids:
            with contextlib.suppress(OSError):  # a request by exit code has no file
                os.unlink(os.path.join(self._directory, f"{request_id}.json"))

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # another agent of this machine, or Ray, still uses it
            os.rmdir(os.path.dirname(self._directory))
