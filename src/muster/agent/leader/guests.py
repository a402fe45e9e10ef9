"""Guests: further drivers on a running cluster, asked for by files, each in a scope of its own on the leader's node."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from muster.agent.job import Identity
from muster.agent.leader.driver import Driver
from muster.agent.leader.status_publisher import StatusPublisher
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.process import Exit
from muster.rundir import read_record, write_json

logger = logging.getLogger(__name__)

LOOK_S = 0.3
_ASKED = {"command", "env", "workdir"}
ENDED_SHOWN = 20  # of the ended ones the status names the last


class Guests:
    """Takes requests while the driver runs; all guests are ended before the cluster under them is."""

    def __init__(
        self,
        identity: Identity,
        publisher: StatusPublisher,
        off_loop: Callable[..., Awaitable[Any]],
        watch: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        self._identity, self._attempt, self._publisher = identity, identity.attempt, publisher
        self._off_loop, self._watch = off_loop, watch
        self._drivers: dict[str, Driver] = {}
        self._running: set[asyncio.Future[Any]] = set()
        self._taken: set[str] = {entry["id"] for entry in publisher.guests}  # under a leader before this one
        self._stopped: set[str] = set()
        self._grace: float | None = None  # set when all are to end
        self._cycles = 0  # how often guests have been served

    async def serve(self, environment: Callable[[dict[str, str]], dict[str, str]], grace: float) -> None:
        """Start what is asked for, end what is asked to end, until the cluster ends. Again for each cycle."""
        self._grace = None
        self._cycles += 1
        cycle = self._cycles
        await self._off_loop(self._bury)
        while self._grace is None and self._cycles == cycle:
            running = self._drivers.keys() - self._stopped
            requests, stops = await self._off_loop(self._look, frozenset(self._taken), running)
            for guest, request in requests.items():
                if self._grace is None:
                    self._start(guest, request, environment(request["env"]))
            for guest in stops & self._drivers.keys():
                self._stopped.add(guest)
                self._drivers[guest].end(grace)
            await asyncio.sleep(LOOK_S)

    def _bury(self) -> None:
        """Guests of a leader that was lost have ended with it, and could not say so."""
        for entry in self._publisher.guests:
            path = self._attempt.guest_outcome(entry["id"])
            if entry["state"] == "running" and entry["id"] not in self._drivers and not os.path.exists(path):
                entry.update(state="ended", exit_code=INFRASTRUCTURE_FAILED)
                write_json(path, {"exit_code": INFRASTRUCTURE_FAILED, "end_reason": "the leader under it was lost"})

    def end(self, grace: float) -> None:
        """End all of them: TERM now, KILL after the grace. A later call may leave less time, never more."""
        if self._grace is None or grace < self._grace:
            self._grace = grace
            for driver in self._drivers.values():
                driver.end(grace)

    def signal(self, signum: int) -> None:
        """Slurm's --signal is for every driver."""
        for driver in self._drivers.values():
            driver.signal(signum)

    async def close(self, grace: float) -> None:
        """Returns when all are gone and their outcomes are written."""
        self.end(grace)
        if self._running:
            await asyncio.wait(self._running)

    def _start(self, guest: str, request: dict[str, Any], env: dict[str, str]) -> None:
        self._taken.add(guest)
        self._drivers[guest] = Driver(self._attempt.guest_log(guest))
        self._publish(guest, {"state": "running", "exit_code": None})
        work = asyncio.ensure_future(self._run(guest, request["command"], env, request["workdir"]))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        self._watch(work)

    async def _run(self, guest: str, command: list[str], env: dict[str, str], workdir: str) -> None:
        try:
            exit = await self._drivers[guest].run(command, env, workdir)
        except OSError as error:  # its log cannot be written: that is no end of the cluster
            logger.warning("guest %s: %s", guest, error)
            exit = Exit()
        del self._drivers[guest]
        self._publish(guest, {"state": "ended", "exit_code": exit.shell_code})
        record = {"exit_code": exit.shell_code, "end_reason": f"the guest {exit}"}
        try:
            await self._off_loop(write_json, self._attempt.guest_outcome(guest), record)
        except OSError as error:
            logger.warning("the outcome of guest %s could not be written: %s", guest, error)

    def _publish(self, guest: str, how: dict[str, Any]) -> None:
        entries = {entry["id"]: entry for entry in self._publisher.guests}
        entries[guest] = {"id": guest, **how}
        ended = [name for name, entry in entries.items() if entry["state"] == "ended"]
        for name in ended[:-ENDED_SHOWN]:
            del entries[name]
        self._publisher.guests = list(entries.values())
        self._publisher.phase(f"guest {guest} {how['state']}")
        self._publisher.event("guest", id=guest, **how)

    def _look(self, taken: frozenset[str], running: set[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """New requests by guest, and running guests that are asked to end. Off the loop: it may touch only files."""
        try:
            names = os.listdir(self._attempt.guests_dir)
        except OSError:
            return {}, set()
        asked = sorted(name[: -len(".json")] for name in names if name.endswith(".json"))
        asked = [guest for guest in asked if f"{guest}.outcome" not in names]
        requests = {
            guest: read_record(self._attempt.guest_request(guest))
            for guest in asked
            if guest not in taken and self._is_ours(guest)
        }
        whole = {guest: request for guest, request in requests.items() if request.keys() >= _ASKED}
        return whole, {guest for guest in running if f"{guest}.stop" in names}

    def _is_ours(self, guest: str) -> bool:
        """A request is a command that runs as us: only the owner of the run's token may leave one."""
        try:
            owner = os.stat(self._identity.run.token).st_uid
            return os.stat(self._attempt.guest_request(guest)).st_uid == owner
        except OSError:
            return False
