"""ipython sessions: each a worker of its own whose execution lives from cell to cell.

(none) -> idle <-> busy; a session that is lost or evicted is (none) again, and its id may come back as a new one
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from muster.sandbox.engine.admission_queue import Overloaded
from muster.sandbox.engine.output import Captured
from muster.sandbox.engine.pool import Pool
from muster.sandbox.engine.worker import Unclean, Worker, ended_of
from muster.sandbox.models import CellResult
from muster.sandbox.settings import KILL_S, SandboxSettings

INTERRUPT_S = 0.5  # what a cell may take to end after its interrupt; then its session is ended
LOOK_S, LOOK_AT_ALL_S = 1.0, 30.0


class SessionLost(Exception):
    """It was to be there, and is not; nothing was run."""


class Session:
    """One session that lives."""

    def __init__(self, name: str, worker: Worker, backend: str) -> None:
        self.name, self.worker, self.backend = name, worker, backend
        self.created = self.last_used = time.time()
        self.turn = asyncio.Lock()  # cells of one session run one after the other
        self.why = ""  # it ended, when there is something better to say than that it did
        self.looked = 0.0  # when its memory was asked for
        self.is_closed = False
        self._cells = 0
        self._is_open = False
        self._answer: asyncio.Future[dict[str, Any] | None] | None = None
        worker.of_session = True
        self._execution = worker.begin()
        self.ended = worker.expect_end()
        self.ended.add_done_callback(lambda _: self._say(None))
        self._execution.on_message(self._on_message)
        self._execution.hand({"do": "session", "backend": backend})

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def _on_message(self, message: dict[str, Any] | None) -> None:
        """A word that is not due is foreign code's, which has the other end too: its session is over."""
        expected = {"event": "open"} if not self._is_open else {"event": "done", "cell": self._cells}
        if message is None or (expected.items() <= message.items() and (not self._is_open or self._is_waiting)):
            is_answer, self._is_open = self._is_open or message is None, True
            if is_answer:
                self._say(message)
        else:
            self.worker.kill("lost")

    @property
    def _is_waiting(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _say(self, message: dict[str, Any] | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    async def run(self, code: str, verbosity: str, timeout: float, limit: int, created: bool) -> CellResult:
        """Run one cell. The caller has the session's turn. Unclean: this session's first cell was not begun."""
        started = time.monotonic()
        self._cells += 1
        loop = asyncio.get_running_loop()
        self._answer = answer = loop.create_future()
        if not self.alive:
            self._say(None)
        self._execution.begin(limit)
        self._execution.hand({"cell": self._cells, "code": code, "verbosity": verbosity})
        timer = loop.call_later(timeout, self.worker.interrupt)
        last = loop.call_later(timeout + INTERRUPT_S, self.worker.kill, "timeout")
        self.worker.watch()
        try:
            message = await answer
        finally:
            self.worker.unwatch()
            timer.cancel()
            last.cancel()
            self.last_used = time.time()
            wall = time.monotonic() - started
            self.worker.busy_s += wall
        if message is None:  # it has ended, or closed the socket behind our back
            self.worker.kill("lost")
            await asyncio.wait([self.ended], timeout=2 * KILL_S)
            is_unfit = self.ended.done() and self.ended.result()["reason"] == "unclean"
            if created and (is_unfit or self._execution.was_not_received):
                raise Unclean("the session ended before it took its first cell")
        stdout, stderr = self._execution.stdout.finish(), self._execution.stderr.finish()
        if wall >= timeout:
            return CellResult("timeout", Captured(), Captured(), created, wall)
        if message is None:
            return CellResult("lost", stdout, stderr, created, wall, self._why_lost())
        return CellResult("error" if message.get("failed") else "completed", stdout, stderr, created, wall)

    def _why_lost(self) -> str:
        if self.why or not self.ended.done():
            return self.why
        ended = ended_of(self.ended.result(), Captured(), Captured(), 0.0, self.worker.cgroup)
        return ended.words if ended.reason in ("memory", "processes", "disk") else ""

    def close(self) -> None:
        self.is_closed = True
        self._execution.close()


class Sessions:
    """All of them."""

    def __init__(self, settings: SandboxSettings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}
        self.created = self.evicted = self.lost = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def listed(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"backend": one.backend, "created": one.created, "last_used": one.last_used, "alive": one.alive}
            for name, one in self._sessions.items()
        }

    @property
    def memory(self) -> int:
        return sum(one.worker.memory for one in self._sessions.values())

    async def get(self, name: str, must_exist: bool) -> tuple[Session, bool]:
        """The session, and whether it was created by this call. It is the caller's turn in it."""
        created = False
        while True:
            while name in self._opening:
                await asyncio.wait([self._opening[name]])
            session = self._sessions.get(name)
            if session is None and must_exist:
                raise SessionLost(f"session {name} is not there any more")
            if session is None:
                session, created = await self._open(name), True
            await session.turn.acquire()
            if self._sessions.get(name) is session and session.alive:
                return session, created
            self.release(session)  # it ended while we waited
            self._forget(session)

    async def _open(self, name: str) -> Session:
        if len(self._sessions) + len(self._opening) >= self._settings.sessions_max and not self._evict_oldest():
            raise Overloaded(f"all {self._settings.sessions_max} sessions are in use")
        opening = self._opening[name] = asyncio.get_running_loop().create_future()
        try:
            worker = await self._pool.take(None, self._settings.queue_wait_s)
            session = Session(name, worker, self._pool.session_backend)
            self._sessions[name] = session
            session.ended.add_done_callback(lambda _: self._on_ended(session))
            self.created += 1
            return session
        finally:
            del self._opening[name]
            opening.set_result(None)

    def delete(self, name: str) -> bool:
        """End it, whatever it is doing; False when there is none."""
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
        """Its tree is gone: the worker may serve somebody else."""
        if self._sessions.get(session.name) is session:
            self.lost += 1
        self._forget(session)
        self._settle(session)

    def release(self, session: Session) -> None:
        """The caller's turn is over."""
        session.turn.release()
        self._settle(session)

    def _settle(self, session: Session) -> None:
        if session.alive or session.is_closed or session.turn.locked():
            return  # in use, or somebody still reads what it left
        session.close()
        worker = session.worker
        worker.memory, worker.of_session = 0, False
        worker.finished(session.ended.result())
        self._pool.give(worker)

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    # -- eviction ---------------------------------------------------------------------------------------------------

    def _idle(self) -> list[Session]:
        """Those without a cell, the longest unused first."""
        return sorted((one for one in self._sessions.values() if not one.turn.locked()), key=lambda one: one.last_used)

    def _evict_oldest(self) -> bool:
        for session in self._idle()[:1]:
            self.evicted += 1
            self._end(session)
            return True
        return False

    def _look(self) -> None:
        """At those that were used since the last time, and now and then at all: they may have threads."""
        now = time.time()
        for session in self._sessions.values():
            if session.last_used > session.looked or now - session.looked > LOOK_AT_ALL_S:
                session.looked = now
                session.worker.look()

    async def keep_house(self) -> None:
        """End sessions that were not used for too long, and the oldest while all take too much memory."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()
            old = time.time() - self._settings.session_idle_s
            for session in self._idle():
                if session.last_used < old or self.memory > self._settings.session_memory_mb << 20:
                    self.evicted += 1
                    self._end(session)
