"""IPython sessions: each has a dedicated worker whose execution lives from cell to cell.

(none) -> idle <-> busy; a session that is lost or evicted is (none) again, and its name may be used for a new one
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from muster.sandbox.engine.admission_queue import Overloaded
from muster.sandbox.engine.pool import Pool
from muster.sandbox.engine.worker import Unclean, Worker, result_of
from muster.sandbox.models import CellResult
from muster.sandbox.output import Captured
from muster.sandbox.settings import KILL_S, SandboxSettings

INTERRUPT_GRACE_S = 0.5  # for a cell to end after its interrupt; then its session is killed
HOUSEKEEPING_INTERVAL_S = 1.0
MAX_USAGE_AGE_S = 30.0  # also the memory of unused sessions is checked this often: they may have threads


class SessionLost(Exception):
    """A session that must exist does not; nothing was run."""


class Session:
    """A live session."""

    def __init__(self, name: str, worker: Worker, backend: str) -> None:
        self.name, self.worker, self.backend = name, worker, backend
        self.created = time.time()  # for people; a decision by this clock would go wrong when it is set
        self.last_used = time.monotonic()
        self.lock = asyncio.Lock()  # cells of one session run one after the other
        self.why = ""  # the reason of its end, if it is known
        self.usage_checked = float("-inf")  # monotonic time of the last request for its memory usage
        self.is_closed = False
        self._cells = 0
        self._is_open = False
        self._answer: asyncio.Future[dict[str, Any] | None] | None = None
        worker.in_session = True
        self._execution = worker.begin()
        self.ended = worker.expect_end()
        self.ended.add_done_callback(lambda _: self._set_answer(None))
        self._execution.on_message(self._on_message)
        self._execution.send({"do": "session", "backend": backend})

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def _on_message(self, message: dict[str, Any] | None) -> None:
        """Handle a message. An unexpected one is from untrusted code, which has the socket too: kill the session."""
        expected = {"event": "open"} if not self._is_open else {"event": "done", "cell": self._cells}
        if message is None or (expected.items() <= message.items() and (not self._is_open or self._is_waiting)):
            is_answer, self._is_open = self._is_open or message is None, True
            if is_answer:
                self._set_answer(message)
        else:
            self.worker.kill("lost")

    @property
    def _is_waiting(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _set_answer(self, message: dict[str, Any] | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    async def run(self, code: str, verbosity: str, timeout: float, limit: int, created: bool) -> CellResult:
        """Run one cell. The caller holds the session's lock. Raises Unclean if its first cell was not started."""
        started = time.monotonic()
        self._cells += 1
        loop = asyncio.get_running_loop()
        self._answer = answer = loop.create_future()
        if not self.alive:
            self._set_answer(None)
        self._execution.begin(limit)
        self._execution.send({"cell": self._cells, "code": code, "verbosity": verbosity})
        timer = loop.call_later(timeout, self.worker.interrupt)
        last = loop.call_later(timeout + INTERRUPT_GRACE_S, self.worker.kill, "timeout")
        self.worker.start_usage_checks()
        try:
            message = await answer
        finally:
            self.worker.stop_usage_checks()
            timer.cancel()
            last.cancel()
            self.last_used = time.monotonic()
            wall = time.monotonic() - started
            self.worker.busy_s += wall
        if message is None:  # it has ended, or untrusted code closed the socket
            self.worker.kill("lost")
            await asyncio.wait([self.ended], timeout=2 * KILL_S)
            is_unfit = self.ended.done() and self.ended.result()["reason"] == "unclean"
            if created and (is_unfit or self._execution.was_not_received):
                raise Unclean("the session ended before it received its first cell")
        stdout, stderr = self._execution.stdout.finish(), self._execution.stderr.finish()
        if wall >= timeout:
            return CellResult("timeout", Captured(), Captured(), created, wall)
        if message is None:
            return CellResult("lost", stdout, stderr, created, wall, self._why_lost())
        return CellResult("error" if message.get("failed") else "completed", stdout, stderr, created, wall)

    def _why_lost(self) -> str:
        if self.why or not self.ended.done():
            return self.why
        ended = result_of(self.ended.result(), Captured(), Captured(), 0.0, self.worker.cgroup)
        return ended.message if ended.reason in ("memory", "processes", "disk") else ""

    def close(self) -> None:
        self.is_closed = True
        self._execution.close()


class Sessions:
    """All sessions of this node by name."""

    def __init__(self, settings: SandboxSettings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}
        self.created = self.evicted = self.lost = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def listed(self) -> dict[str, dict[str, Any]]:
        """Describe the sessions, with times of the wall clock."""
        offset = time.time() - time.monotonic()
        return {
            name: {
                "backend": one.backend,
                "created": one.created,
                "last_used": max(one.created, one.last_used + offset),
                "alive": one.alive,
            }
            for name, one in self._sessions.items()
        }

    @property
    def memory(self) -> int:
        return sum(one.worker.memory for one in self._sessions.values())

    async def get(self, name: str, must_exist: bool) -> tuple[Session, bool]:
        """Return the session, locked for the caller, and whether this call created it."""
        created = False
        while True:
            while name in self._opening:
                await asyncio.wait([self._opening[name]])
            session = self._sessions.get(name)
            if session is None and must_exist:
                raise SessionLost(f"session {name} does not exist any more")
            if session is None:
                session, created = await self._open(name), True
            await session.lock.acquire()
            if self._sessions.get(name) is session and session.alive:
                return session, created
            self.release(session)  # it ended while we waited for the lock
            self._forget(session)

    async def _open(self, name: str) -> Session:
        if len(self._sessions) + len(self._opening) >= self._settings.sessions_max and not self._evict_oldest():
            raise Overloaded(f"all {self._settings.sessions_max} sessions are in use")
        opening = self._opening[name] = asyncio.get_running_loop().create_future()
        try:
            worker = await self._pool.acquire(None, self._settings.queue_wait_s)
            session = Session(name, worker, self._pool.session_backend)
            self._sessions[name] = session
            session.ended.add_done_callback(lambda _: self._on_ended(session))
            self.created += 1
            return session
        finally:
            del self._opening[name]
            opening.set_result(None)

    def delete(self, name: str) -> bool:
        """Kill a session, even while a cell runs; return False if there is no such session."""
        session = self._sessions.get(name)
        if session is None:
            return False
        session.why = "the session was deleted"
        self._end(session)
        return True

    def _end(self, session: Session) -> None:
        self._sessions.pop(session.name, None)
        session.worker.kill("deleted")

    def _on_ended(self, session: Session) -> None:
        """Handle the end of a session's process tree."""
        if self._sessions.get(session.name) is session:
            self.lost += 1
        self._forget(session)
        self._return_worker(session)

    def release(self, session: Session) -> None:
        """Unlock the session after a cell."""
        session.lock.release()
        self._return_worker(session)

    def _return_worker(self, session: Session) -> None:
        """Return the worker to the pool once the session has ended and no caller reads its output."""
        if session.alive or session.is_closed or session.lock.locked():
            return
        session.close()
        worker = session.worker
        worker.memory, worker.in_session = 0, False
        worker.finished(session.ended.result())
        self._pool.release(worker)

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    # -- eviction ---------------------------------------------------------------------------------------------------

    def _idle(self) -> list[Session]:
        """Return the sessions without a running cell, the least recently used first."""
        return sorted((one for one in self._sessions.values() if not one.lock.locked()), key=lambda one: one.last_used)

    def _evict_oldest(self) -> bool:
        for session in self._idle()[:1]:
            self.evicted += 1
            self._end(session)
            return True
        return False

    def _check_usage(self) -> None:
        """Request the memory usage of sessions that were used since the last request, or were not checked for long."""
        now = time.monotonic()
        for session in self._sessions.values():
            if session.last_used > session.usage_checked or now - session.usage_checked > MAX_USAGE_AGE_S:
                session.usage_checked = now
                session.worker.check_usage()

    async def housekeeping(self) -> None:
        """Evict sessions that were unused for too long, and the oldest while all together use too much memory."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)
            self._check_usage()
            oldest = time.monotonic() - self._settings.session_idle_s
            for session in self._idle():
                if session.last_used < oldest or self.memory > self._settings.session_memory_mb << 20:
                    self.evicted += 1
                    self._end(session)
