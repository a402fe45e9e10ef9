"""Guest sessions: further drivers on a running cluster, requested by files, each in its scope on the leader's node."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from muster.agent.leader.context import LeaderContext
from muster.agent.leader.driver import Driver
from muster.agent.run_directory import RunDirectoryError
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.process import Exit, Log
from muster.rundir import read_record, write_json

logger = logging.getLogger(__name__)

GuestEnvironment = Callable[[dict[str, str]], Awaitable[dict[str, str]]]  # of a guest with these own variables

GUEST_POLL_S = 0.3
_REQUEST_KEYS = {"command", "env", "workdir"}
MAX_ENDED_SHOWN = 20  # ended guests in the status


class Guests:
    """Handles requests while the driver runs; all guests end before their cluster."""

    def __init__(self, context: LeaderContext) -> None:
        self._context, self._attempt, self._publisher = context, context.identity.attempt, context.publisher
        self._drivers: dict[str, Driver] = {}
        self._running: set[asyncio.Future[Any]] = set()
        self._known: set[str] = {entry["id"] for entry in self._publisher.guests}  # including those of previous leaders
        self._stopped: set[str] = set()
        self._grace: float | None = None  # set when all guests are to end
        self._cycles = 0  # the number of `serve` calls

    async def serve(self, environment: GuestEnvironment, grace: float) -> None:
        """Start and end guests on request until the cluster ends. Called for each cycle."""
        self._grace = None
        self._cycles += 1
        cycle = self._cycles
        await self._context.files.run(self._record_lost_guests)
        while self._grace is None and self._cycles == cycle:
            running = self._drivers.keys() - self._stopped
            requests, stops = await self._context.files.run(self._read_requests, frozenset(self._known), running)
            for guest, request in requests.items():
                env = await environment(request["env"])
                if self._grace is None and self._cycles == cycle:
                    self._start(guest, request, env)
            for guest in stops & self._drivers.keys():
                self._stopped.add(guest)
                self._drivers[guest].end(grace)
            await asyncio.sleep(GUEST_POLL_S)

    def _record_lost_guests(self) -> None:
        """Record the end of guests whose leader was lost: they have ended with it, without an outcome."""
        for entry in self._publisher.guests:
            path = self._attempt.guest_outcome(entry["id"])
            if entry["state"] == "running" and entry["id"] not in self._drivers and not os.path.exists(path):
                entry.update(state="ended", exit_code=INFRASTRUCTURE_FAILED)
                write_json(path, {"exit_code": INFRASTRUCTURE_FAILED, "end_reason": "the leader was lost"})

    def end(self, grace: float) -> None:
        """Send SIGTERM to all guests now and SIGKILL after `grace` seconds. A later call can only shorten the grace."""
        if self._grace is None or grace < self._grace:
            self._grace = grace
            for driver in self._drivers.values():
                driver.end(grace)

    def signal(self, signum: int) -> None:
        """Forward Slurm's --signal to every guest."""
        for driver in self._drivers.values():
            driver.signal(signum)

    async def close(self, grace: float) -> None:
        """End all guests; return when their outcomes are written."""
        self.end(grace)
        if self._running:
            await asyncio.wait(self._running)

    def _start(self, guest: str, request: dict[str, Any], env: dict[str, str]) -> None:
        self._known.add(guest)
        node_index = self._context.identity.node_index
        log = Log(self._attempt.guest_log(guest), self._context.job.log_limit)
        self._drivers[guest] = Driver(log, self._context.inbox, node_index)
        self._publish(guest, {"state": "running", "exit_code": None})
        work = self._context.inbox.spawn(self._run(guest, request["command"], env, request["workdir"]))
        self._running.add(work)
        work.add_done_callback(self._running.discard)

    async def _run(self, guest: str, command: list[str], env: dict[str, str], workdir: str) -> None:
        try:
            exit = await self._drivers[guest].run(command, env, workdir)
        except (OSError, RunDirectoryError) as error:  # its log cannot be written: the cluster continues
            logger.warning("guest %s: %s", guest, error)
            exit = Exit()
        del self._drivers[guest]
        self._publish(guest, {"state": "ended", "exit_code": exit.shell_code})
        record = {"exit_code": exit.shell_code, "end_reason": f"the guest {exit}"}
        try:
            await self._context.files.run(write_json, self._attempt.guest_outcome(guest), record)
        except OSError as error:
            logger.warning("the outcome of guest %s could not be written: %s", guest, error)

    def _publish(self, guest: str, state: dict[str, Any]) -> None:
        entries = {entry["id"]: entry for entry in self._publisher.guests}
        entries[guest] = {"id": guest, **state}
        ended = [name for name, entry in entries.items() if entry["state"] == "ended"]
        for name in ended[:-MAX_ENDED_SHOWN]:
            del entries[name]
        self._publisher.guests = list(entries.values())
        self._publisher.phase(f"guest {guest} {state['state']}")
        self._publisher.event("guest", id=guest, **state)

    def _read_requests(self, known: frozenset[str], running: set[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """Return new requests by guest, and running guests to end. Runs off the loop: uses only files."""
        try:
            names = os.listdir(self._attempt.guests_dir)
        except OSError:
            return {}, set()
        requested = sorted(name[: -len(".json")] for name in names if name.endswith(".json"))
        requested = [guest for guest in requested if f"{guest}.outcome" not in names]
        requests = {
            guest: read_record(self._attempt.guest_request(guest))
            for guest in requested
            if guest not in known and self._is_authorized(guest)
        }
        complete = {guest: request for guest, request in requests.items() if request.keys() >= _REQUEST_KEYS}
        return complete, {guest for guest in running if f"{guest}.stop" in names}

    def _is_authorized(self, guest: str) -> bool:
        """Accept only requests of the owner of the run's token: they are commands that run as this user."""
        try:
            owner = os.stat(self._context.identity.run.token).st_uid
            return os.stat(self._attempt.guest_request(guest)).st_uid == owner
        except OSError:
            return False
