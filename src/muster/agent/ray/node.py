"""This node's Ray: imported early, started when the leader requests it, retried with fresh state.

RayNode makes up to START_ATTEMPTS attempts. It handles the events of the current attempt one after the other:

    event             posted when                                  handling
    RayStartRequest   the leader requests the start                start Ray, with the rank of the cycle
    RayImported       the starter has imported Ray                 fail if this release cannot be used
    NodesAlive        on the head: Ray's node table has changed    post it
    RayRunning        `ray start` has returned                     post it for a worker; a head is ready when alive
    GcsRecovered      the GCS had ended, and was restarted         post it
    StartFailure      Ray could not be started, or has ended       another attempt if that may help; else post RayFailed

NodeAgent handles what RayNode posts: these events, HeadAddressKnown, RayNote and RayFailed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Union

from muster.agent.health.limits import warnings
from muster.agent.log_collection import LogCollection, group_delay
from muster.agent.private_dir import make_private_child
from muster.agent.ray import resources, settings, starter
from muster.agent.ray.gcs_recovery import GCS, GcsRecovered, GcsRecovery, ProcessCommand, storage_directory
from muster.agent.ray.gpu_affinity import AffinityFile
from muster.agent.ray.labels import NODE_TYPE_VARIABLE, NodeFacts, node_type, probe_nvlink_domain
from muster.agent.ray.nemo_rl import affinity_variable
from muster.agent.ray.resources import ResourceShare
from muster.agent.ray.session_logs import ArchiveOptions, archive_logs, should_keep
from muster.agent.ray.settings import RayOptions
from muster.agent.ray.tuning import defaults
from muster.ports.blocks import HeldBlock, take_block
from muster.process import Exit, Scope, ScopeWatcher, SpawnError, descendants, source_of, sweep
from muster.rundir.tokens import derive_ray_token

START_ATTEMPTS = 3
TOKENS_SINCE = (2, 52)  # first release of Ray with token authentication
START_BACKOFF_S = 0.5  # doubled after each attempt
FAILED_START_LOGS_S = 10.0  # for archiving the logs of a failed attempt
STOP_GRACE_S = 0.3  # Ray's daemons have nothing to save at the end of a run; they write their logs continuously
REPORT_MAX_BYTES = 4 << 20  # of a line: the node table of 100,000 nodes takes 0.7 MB; asyncio's default is 64 KiB
DAEMONS = ("raylet", GCS)  # the exit of one is a failure of the node; names as in /proc/<pid>/comm


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RayStartRequest:
    """The leader's request to start Ray."""

    address: str  # of this node
    head: str | None  # the head's address; None: this node is the head
    rank: int  # in the cycle
    replaces: int | None = None  # node index of a lost node, which is removed from Ray's node table first


@dataclass(frozen=True)
class RayImported:
    """The starter has imported this release of Ray."""

    version: str


@dataclass(frozen=True)
class NodesAlive:
    """Ray's node table lists these nodes as alive."""

    node_indexes: tuple[int, ...]


@dataclass(frozen=True)
class RayRunning:
    """`ray start` has returned, and the daemons run."""


@dataclass(frozen=True)
class StartFailure:
    """Why an attempt failed; `final` if a retry would fail, too."""

    reason: str
    final: bool = False


@dataclass(frozen=True)
class HeadAddressKnown:
    """Workers reach the head at this address as soon as it runs."""

    address: str
    dashboard: int | None  # its port, if there is one


@dataclass(frozen=True)
class RayNote:
    """A text for the people who read the run's phases."""

    text: str


@dataclass(frozen=True)
class RayFailed:
    """Ray could not be started, or has ended."""

    reason: str


AttemptEvent = Union[RayStartRequest, RayImported, NodesAlive, RayRunning, GcsRecovered, StartFailure]
RayEvent = Union[NodesAlive, RayRunning, GcsRecovered, HeadAddressKnown, RayNote, RayFailed]


# -- this node --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RaySetup:
    """The directories, the environment and the run's token for one node's Ray."""

    temp: str  # prefix of Ray's temporary directories
    archive: str  # of the logs afterwards, without suffix
    env: dict[str, str]
    token: bytes


class RayNode:
    """Owns Ray's processes, ports and directories on this node."""

    def __init__(
        self, options: RayOptions, facts: NodeFacts, setup: RaySetup, post: Callable[[RayEvent], None]
    ) -> None:
        """`post` passes an event on to the agent."""
        self._options, self._facts, self._setup, self._post = options, facts, setup, post
        self._env = {
            **settings.without_variables(setup.env, options.unset),
            **affinity_variable(options.gpu_affinity_file),
            NODE_TYPE_VARIABLE: node_type(facts),
        }
        self._attempt: StartAttempt | None = None
        self._request: RayStartRequest | None = None
        self._task: asyncio.Task[None] | None = None
        self._share: ResourceShare
        self._nvlink_domain: asyncio.Future[str | None]
        self._affinity = AffinityFile(options.gpu_affinity_file if options.gpus != 0 else None, self._env)
        self._affinity_note: asyncio.Future[str | None]

    async def warm(self) -> None:
        """Count resources (raise ResourceMismatch if there are too few), lease ports, begin importing Ray."""
        self._share = self._count_resources()
        loop = asyncio.get_running_loop()
        self._nvlink_domain = loop.run_in_executor(None, probe_nvlink_domain, self._env)
        self._affinity_note = loop.run_in_executor(None, self._affinity.write)
        self._attempt = await self._new_attempt(0)
        self._task = asyncio.create_task(self._run_attempts(self._attempt))
        self._task.add_done_callback(self._on_task_done)

    def _count_resources(self) -> ResourceShare:
        """Return this node's share of the step's resources. Local runs declare GPUs and divide CPUs beforehand."""
        options, found = self._options, resources.probe(os.environ)
        if options.local:
            found = replace(found, gpus=None, confined=False)
        parts = options.nodes if options.local else 1
        share = resources.share(found, options.cpus, options.gpus, options.store, parts)
        for warning in [*warnings(share.cpus), resources.object_store_warning(found, share)]:
            if warning is not None:
                self._post(RayNote(warning))
        return share

    def _on_task_done(self, work: asyncio.Task[None]) -> None:
        """Report a defect at once, instead of waiting for the deadline."""
        if not work.cancelled() and work.exception() is not None:
            self._post(RayFailed(f"starting Ray failed: {work.exception()!r}"))

    def _check_version(self, version: str) -> str | None:
        """Return why this release of Ray cannot be used: it has no tokens, and they are required."""
        if tuple(map(int, version.split(".")[:2])) >= TOKENS_SINCE:
            return None
        lacks = f"Ray {version} does not support tokens (2.52 and newer do)"
        if self._options.require_auth:
            return f"{lacks}, and --require-auth requires them"
        if self._facts.head:  # once, not from every node
            note = f"{lacks}: every user who can reach this cluster can use it; --require-auth would refuse it"
            self._post(RayNote(note))
        return None

    def start(self, request: RayStartRequest) -> None:
        """Start Ray as soon as it is imported. A later attempt uses the same request."""
        self._request = request
        if self._attempt is not None:
            self._attempt.events.put_nowait(request)

    async def _new_attempt(self, number: int) -> StartAttempt:
        temp = f"{self._setup.temp}.{number}"
        size = settings.block_size(self._options)
        smallest = settings.smallest_block(self._options, self._share.cpus)
        held = take_block(temp, size, settings.pinned_base(self._options, self._facts.node_index or 0), smallest)
        if warning := held.warning():
            self._post(RayNote(f"Ray: {warning}"))
        tuning = defaults(self._options.nodes, self._options.large_from)
        env = settings.environment(self._env, StartAttempt.token_file(temp), tuning)
        attempt = StartAttempt(temp, self._setup.token, env, held)
        try:
            await attempt.warm()
        except BaseException:
            await attempt.stop(None)
            raise
        if self._request is not None:
            attempt.events.put_nowait(self._request)
        return attempt

    async def _run_attempts(self, attempt: StartAttempt) -> None:
        """Start Ray, retry with fresh state if that may help, and watch it until it fails or is stopped."""
        reasons: list[str] = []
        while True:
            failure = await self._handle_events(attempt)
            reasons.append(failure.reason)
            if attempt.started or attempt.joined or failure.final or len(reasons) == START_ATTEMPTS:
                break
            self._post(RayNote(f"{failure.reason}; try {len(reasons) + 1} of {START_ATTEMPTS} follows"))
            collection = LogCollection(True, group_delay(self._facts.rank), FAILED_START_LOGS_S)
            await attempt.stop(self._archive_options(f".try{len(reasons)}", collection))
            await asyncio.sleep(START_BACKOFF_S * 2 ** (len(reasons) - 1))
            try:
                self._attempt = attempt = await self._new_attempt(len(reasons))
            except (OSError, SpawnError) as error:
                reasons.append(str(error))
                break
        tries = "" if len(reasons) == 1 else f" (try {len(reasons)} of {START_ATTEMPTS})"
        self._post(RayFailed(reasons[-1] + tries))

    async def _handle_events(self, attempt: StartAttempt) -> StartFailure:
        """Handle the events of an attempt until it fails, however late; return why."""
        while not isinstance(event := await attempt.events.get(), StartFailure):
            if isinstance(event, RayStartRequest):
                if (note := await self._affinity_note) is not None and self._options.gpus:
                    self._post(RayNote(note))
                facts = replace(self._facts, nvlink_domain=await self._nvlink_domain, rank=event.rank)
                self._start(attempt, event, facts)
            elif isinstance(event, RayImported):
                if (unfit := self._check_version(event.version)) is not None:
                    return StartFailure(unfit, final=True)
            elif isinstance(event, (NodesAlive, GcsRecovered)) or not self._is_head:
                self._post(event)
        return event

    @property
    def _is_head(self) -> bool:
        return self._request is not None and self._request.head is None

    def _start(self, attempt: StartAttempt, request: RayStartRequest, facts: NodeFacts) -> None:
        args = settings.start_arguments(self._options, facts, self._share, request.address, attempt.temp)
        args += attempt.ports.arguments()
        if request.head is None:
            gcs: list[Any] = [request.address, attempt.ports.gcs]
            args = settings.head_arguments(self._options, attempt.ports) + args
            attempt.start(args, gcs, self._options.nodes, self._options.gcs_recovery)
            dashboard = attempt.ports.dashboard if self._options.dashboard else None
            self._post(HeadAddressKnown(settings.join_address(request.address, attempt.ports.gcs), dashboard))
        else:
            worker = [f"--address={request.head}", *args]
            attempt.start(worker, None, self._options.nodes, replaces=request.replaces)

    def _archive_options(self, suffix: str, ending: LogCollection) -> ArchiveOptions | None:
        """Return how to archive logs; those of a failed attempt explain delays even if the run succeeds later."""
        if ending.seconds <= 0 or not should_keep(self._options.logs, ending.failed):
            return None
        return ArchiveOptions(self._setup.archive + suffix, self._options.logs_max, ending.after, ending.seconds)

    async def stop(self, ending: LogCollection) -> None:
        """End Ray's processes, archive the logs if wanted, remove its directories and release its ports."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._attempt is not None:
            await self._attempt.stop(self._archive_options("", ending))
        await asyncio.to_thread(self._remove_files)

    def _remove_files(self) -> None:
        self._affinity.remove()
        with contextlib.suppress(OSError):  # another virtual node of this machine may still use it
            os.rmdir(os.path.dirname(self._setup.temp))


# -- one attempt ------------------------------------------------------------------------------------------------------


class StartAttempt(ScopeWatcher):
    """Imports, starts and watches Ray once, with a new scope, starter, temporary directory and ports.

    `events` has what happens to it, in order; a StartFailure is the last one. `stop` is idempotent.
    """

    def __init__(self, temp: str, token: bytes, env: dict[str, str], held: HeldBlock) -> None:
        self.events: asyncio.Queue[AttemptEvent] = asyncio.Queue()
        self.temp, self.ports = temp, held.block
        self._token, self._env, self._held = token, env, held
        directories = [temp, *(env[name] for name in ("MUSTER_CONTROL_DIR",) if name in env)]
        self._scope = Scope("ray", directories=directories, watcher=self)
        self._daemons: dict[int, str] = {}
        self._early_exits: dict[int, Exit] | None = None  # by pid, while the daemons are looked up
        self._commands = -1
        self._opening: asyncio.Future[Scope] | None = None
        self._stopped = False
        self._reports: asyncio.Task[None] | None = None
        self._gcs: tuple[str, int] | None = None  # its address, on the head
        self._recovers = False  # the GCS is restarted if it exits, where Ray can store its state
        self._recovery: GcsRecovery | None = None  # once Ray runs
        self._recovering: asyncio.Task[None] | None = None
        self._nodes, self._complete = 0, True  # complete: the node table has all nodes
        self.joined = False  # other nodes may have joined this head: a retry would start another cluster
        self.started = self._failed = False

    @staticmethod
    def token_file(temp: str) -> str:
        """Return the path of a copy on the node's disk: Ray's processes read it often, and the original is shared."""
        return os.path.join(temp, "token")

    async def warm(self) -> None:
        """Start the process that imports Ray; return before the import is complete."""
        make_private_child(self.temp)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(self.token_file(self.temp), flags, 0o600), "wb") as file:
            file.write(derive_ray_token(self._token))
        # Shielded: `stop` must know a supervisor that was started, even if this call is cancelled.
        self._opening = asyncio.ensure_future(self._scope.open())
        await asyncio.shield(self._opening)
        commands, self._commands = os.pipe()
        reports, reports_write = os.pipe()
        try:
            self._starter = await self._scope.spawn(
                [sys.executable, "-u", "-c", source_of(starter)],
                env=self._env,
                stdin=commands,
                stdout=reports_write,
                stderr=2,
            )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(commands)
            os.close(reports_write)
        self._reports = asyncio.create_task(self._read_reports(reports))

    def start(
        self, args: list[str], gcs: list[Any] | None, nodes: int, recovery: bool = False, replaces: int | None = None
    ) -> None:
        """Run `ray start`; with `gcs` (the head's address) the starter reports the nodes in Ray's table.

        `recovery`: the GCS stores its state, if this Ray can do that, and is restarted when it exits. `replaces`: the
        node index of a lost node, which is removed from the table first.
        """
        self._nodes, self._complete = nodes, gcs is None
        self._gcs, self._recovers = (gcs[0], gcs[1]) if gcs else None, recovery
        storage = storage_directory(self.temp) if recovery and gcs else None
        command = {
            "start": args,
            "gcs": gcs,
            "nodes": nodes,
            "client_port": self.ports.client_server,
            "storage": storage,
            "replaces": replaces,
        }
        with contextlib.suppress(BrokenPipeError):  # the starter has ended: the reader of its reports handles that
            os.write(self._commands, json.dumps(command).encode() + b"\n")

    async def _read_reports(self, fd: int) -> None:
        """Handle the starter's reports until it ends; an end before `ray start` succeeded is a failure."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=REPORT_MAX_BYTES)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
        while line := await reader.readline():
            report = json.loads(line)
            if report["event"] == "warm":
                self.events.put_nowait(RayImported(report["ray"]))
            elif report["event"] == "no_ray":
                why = f"Ray cannot be imported by {sys.executable}: {report['error']} (--python chooses another)"
                self._fail(why, final=True)
            elif report["event"] == "refused":
                self._fail(report["error"], final=True)
            elif report["event"] == "alive":
                self._complete = len(report["ranks"]) == self._nodes
                self.joined = True
                self.events.put_nowait(NodesAlive(tuple(report["ranks"])))
            elif report["event"] == "started" and report["code"] == 0:
                await self._find_daemons(report.get("stored", False))
                self.started = True
                self.events.put_nowait(RayRunning())
            elif report["event"] == "started":
                self._fail(f"`ray start` exited with {report['code']}")
        transport.close()
        if not self.started or not self._complete:
            self._fail(f"the process that starts and watches Ray {await self._starter.wait()}")

    async def _find_daemons(self, stored: bool) -> None:
        """Record the daemons' pids, so that the exit of one is detected immediately. `stored`: the GCS's state is."""
        self._early_exits = {}
        found, gcs = await asyncio.to_thread(_daemons_below, self._scope.supervisor_pid)
        early, self._early_exits = self._early_exits, None
        self._daemons.update(found)
        if gcs is not None and stored and self._gcs is not None:
            self._recovery = GcsRecovery(self._scope, gcs, self._gcs, self.events.put_nowait)
        for name in DAEMONS if self._gcs else DAEMONS[:1]:
            if name not in self._daemons.values():  # final: others may use the cluster already
                self._fail(f"Ray's {name} was gone when `ray start` returned", final=True)
        for pid in found.keys() & early.keys():
            self.orphan_exited(pid, early[pid])

    def orphan_exited(self, pid: int, exit: Exit) -> None:
        if self._early_exits is not None:
            self._early_exits[pid] = exit  # it may turn out to be a daemon
        name = self._daemons.pop(pid, None)
        if name == GCS and self._recovery is not None and not self._failed:
            self._recovering = asyncio.ensure_future(self._recover(self._recovery, exit))
        elif name is not None:
            lacks = "; its state was not stored (Ray 2.60 can do that), so it cannot be restarted"
            self._fail(f"Ray's {name} {exit}{lacks if name == GCS and self._recovers else ''}")

    async def _recover(self, recovery: GcsRecovery, exit: Exit) -> None:
        self._fail(await recovery.run(exit))

    def supervisor_lost(self) -> None:
        self._fail("the supervisor of Ray's processes was killed", final=True)

    def _fail(self, reason: str, final: bool = False) -> None:
        """Post the first failure; the others follow from it, or from `stop`."""
        if not self._failed:
            self._failed = True
            self.events.put_nowait(StartFailure(reason, final))

    async def stop(self, archive: ArchiveOptions | None) -> None:
        """End the processes, archive the logs if wanted, remove the directory, release the ports.

        A second call does nothing; a call after a cancelled one completes it.
        """
        self._fail("stopped")  # from here on the exit of a daemon is expected
        if self._stopped:
            return
        commands, self._commands = self._commands, -1  # the descriptor may be reused as soon as it is closed
        if commands != -1:
            os.close(commands)
        if self._recovering is not None:
            self._recovering.cancel()
        await self._end_processes()
        loop = asyncio.get_running_loop()
        if archive is not None:
            await asyncio.sleep(archive.after)
            logs = os.path.join(self.temp, "session_latest", "logs")
            await loop.run_in_executor(None, archive_logs, os.path.realpath(logs), archive)
        await loop.run_in_executor(None, lambda: shutil.rmtree(self.temp, ignore_errors=True))
        self._held.release()
        self._stopped = True

    async def _end_processes(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._scope.close(STOP_GRACE_S)
                if self._scope.lost:
                    sweep()  # the processes are this agent's children now
        if self._reports is not None:
            await asyncio.wait([self._reports])


def _daemons_below(supervisor: int) -> tuple[dict[int, str], ProcessCommand | None]:
    """Return the names of Ray's daemons by pid, and the command of the GCS, if it runs.

    Called off the event loop. /proc may withhold a process that has just executed a program until the files of its
    predecessor are closed, which takes as long as their filesystem hangs.
    """
    found: dict[int, str] = {}
    gcs = None
    for pid in descendants(supervisor):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                name = file.read().strip()
        except OSError:
            continue
        if name in DAEMONS:
            found[pid] = name
        if name == GCS:
            with contextlib.suppress(OSError):  # it has exited
                gcs = ProcessCommand.of(pid)
    return found, gcs
