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
from muster.sandbox.models import CellResult, owned_name, public_name
from muster.sandbox.output import Captured
from muster.sandbox.settings import CLIENT_PATIENCE_S, KILL_S, SandboxSettings

# For a cell to end after its interrupt; then its session is killed. On a busy machine it needs time to do so; but the
# next cell of the session may be waiting for it.
MIN_INTERRUPT_GRACE_S, MAX_INTERRUPT_GRACE_S = 0.5, 1.0
HOUSEKEEPING_INTERVAL_S = 1.0
MAX_USAGE_AGE_S = 30.0  # also the memory of unused sessions is checked this often: they may have threads
ACTIVE_S = 5.0  # after CPU time was last used, in which the session is checked every time
# Reasons that are named to the client.
LIMITS = ("memory", "processes", "disk", "connections", "node_memory", "background")


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
        self._was_given_up = False  # its cell did not end after the interrupt: it is being killed
        self._allowed_s = 0.0  # CPU seconds in the background
        self._cpu_at_rest: float | None = None  # CPU seconds soon after the last cell; None: not known yet
        self._cpu_last = 0.0
        self._active_until = 0.0
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

    async def run(
        self, code: str, verbosity: str, timeout: float, limit: int, created: bool, waited: float = 0.0
    ) -> CellResult:
        """Run one cell, for which its client has waited so many seconds. The caller holds the session's lock.

        Raises Unclean if its first cell was not started.
        """
        started = time.monotonic()
        self._cells += 1
        loop = asyncio.get_running_loop()
        self._answer = answer = loop.create_future()
        if not self.alive:
            self._set_answer(None)
        self._execution.begin(limit)
        deadline = started + timeout
        self._execution.send({"cell": self._cells, "code": code, "verbosity": verbosity, "deadline": deadline})
        timer = loop.call_later(timeout, self.worker.interrupt)
        last = loop.call_later(timeout + interrupt_grace_s(waited), self._give_up)
        self.worker.start_usage_checks()
        try:
            message = await answer
        finally:
            self.worker.stop_usage_checks()
            timer.cancel()
            last.cancel()
            self.last_used = time.monotonic()
            self._allowed_s, self._cpu_at_rest = timeout, None
            wall = time.monotonic() - started
            self.worker.busy_s += wall
        if message is None:  # it has ended, or untrusted code closed the socket
            self.worker.kill("lost")
        if message is None or self._was_given_up:  # the next cell must not be sent to a session that is about to end
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

    def _give_up(self) -> None:
        self._was_given_up = True
        self.worker.kill("timeout")

    def check_background(self) -> bool:
        """Compare the CPU time since the last cell with what is allowed; return whether it has grown recently.

        A cell may report its end and go on, or leave threads and processes: together they may use as much CPU time as
        the cell was allowed to take. The reports that this uses are about a second old.
        """
        used, now = self.worker.cpu_s, time.monotonic()
        if used > self._cpu_last or self.last_used > now - ACTIVE_S:
            self._cpu_last, self._active_until = used, now + ACTIVE_S
        if self.lock.locked() or self.usage_checked < self.last_used:
            return True
        if self._cpu_at_rest is None:
            self._cpu_at_rest = used
        elif used - self._cpu_at_rest > self._allowed_s and self.alive:
            self.worker.kill("background")
        return now < self._active_until

    def _why_lost(self) -> str:
        if self.why or not self.ended.done():
            return self.why
        ended = result_of(self.ended.result(), Captured(), Captured(), 0.0, self.worker.cgroup)
        return ended.message if ended.reason in LIMITS else ""

    def close(self) -> None:
        self.is_closed = True
        self._execution.close()


def interrupt_grace_s(waited: float) -> float:
    """Return how long a cell may take to end after its interrupt, if its client is to have a response in time.

    >>> interrupt_grace_s(0.0), interrupt_grace_s(2.75), interrupt_grace_s(3.5)
    (1.0, 0.75, 0.5)
    """
    left = CLIENT_PATIENCE_S - KILL_S - 0.5 - waited
    return min(MAX_INTERRUPT_GRACE_S, max(MIN_INTERRUPT_GRACE_S, left))


class Sessions:
    """All sessions of this node by name."""

    def __init__(self, settings: SandboxSettings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}
        self.created = self.evicted = self.lost = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def listed(self, owner: str = "") -> dict[str, dict[str, Any]]:
        """Describe the sessions of an owner, with times of the wall clock."""
        offset = time.time() - time.monotonic()
        return {
            public_name(name): {
                "backend": one.backend,
                "created": one.created,
                "last_used": max(one.created, one.last_used + offset),
                "alive": one.alive,
            }
            for name, one in self._sessions.items()
            if owned_name(public_name(name), owner) == name
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
                raise SessionLost(f"session {public_name(name)} does not exist any more")
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
            if worker.state != "warm":  # it was lost since then
                raise Overloaded(f"a worker was lost: {worker.why}")
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
            if session.check_background() or now - session.usage_checked > MAX_USAGE_AGE_S:
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
