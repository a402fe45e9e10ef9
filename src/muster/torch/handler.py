"""The rendezvous handler for torchrun. Importing this module imports torch."""

from __future__ import annotations

import logging
import socket
import sys
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from muster.agent.node_log import log_to_stderr
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.events import RunOutcome
from muster.process import Exit
from muster.torch.elastic_types import JobState
from muster.torch.failover import FailoverSession, kill_children
from muster.torch.launch_env import launch_environment
from muster.torch.session import JobOver, NodeSession, Refused, Round, Unreachable
from muster.torch.settings import BACKEND, ON_HANDLER, RendezvousSettings, parse_settings

logger = logging.getLogger(__name__)


class MusterRendezvous(RendezvousHandler):
    """The rendezvous of one node: a NodeSession behind torchrun's interface."""

    def __init__(self, settings: RendezvousSettings) -> None:
        self._settings = settings
        self._session = _session(settings)

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        """Let workers use the round's store: MASTER_PORT is open before they start, and no free port is searched."""
        return True

    @property
    def outcome(self) -> RunOutcome | None:
        """The outcome of the job, once the coordinator has sent it."""
        return self._session.outcome

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until this node has a rank, which a spare may never get.

        If the job succeeds without it, exit the process with 0. RendezvousGracefulExitError would make torch 2.13 fail
        on the missing result and exit with 1.
        """
        try:
            round, store = self._session.join(self._connect_store)
        except JobOver as over:
            if over.outcome.exit_code == 0:
                logger.info("the job succeeded without this node")
                raise SystemExit(0) from over
            timed_out = over.outcome.phase == JobState.GATHERING.value
            raise (RendezvousTimeoutError if timed_out else RendezvousClosedError)(str(over)) from over
        except Unreachable as error:
            raise RendezvousConnectionError(str(error)) from error
        except Refused as error:
            raise RendezvousStateError(str(error)) from error
        store_info = RendezvousStoreInfo(self._store_host(round), round.port)
        return RendezvousInfo(PrefixStore(f"muster/{round.number}", store), round.rank, round.size, store_info)

    def num_nodes_waiting(self) -> int:
        """Return 1 if torchrun must restart its workers: the round or the job is over, or the coordinator is lost.

        Waiting spares do not count.
        """
        return int(self._session.is_recalled)

    def is_closed(self) -> bool:
        return self._session.is_over

    def set_closed(self) -> None:
        self.shutdown()

    def shutdown(self) -> bool:
        """Leave the job. torchrun calls this last, with its exception in flight if it failed; raise nothing over it."""
        try:
            code, reason = ending(sys.exc_info()[1])
            self._session.leave(code, reason)
        except Exception as error:
            logger.warning("leaving the rendezvous failed: %s", error)
            return False
        return True

    def withdraw(self, reason: str) -> None:
        """Leave the job because of a signal; torchrun does not call `shutdown` then."""
        self._session.withdraw(reason)

    def _connect_store(self, round: Round) -> Any:
        try:
            timeout = _timeout(self._settings)
            return TCPStore(self._store_host(round), round.port, wait_for_workers=False, timeout=timeout)
        except RuntimeError as error:
            raise RendezvousConnectionError(f"the store of round {round.number}: {error}") from error

    def _store_host(self, round: Round) -> str:
        return round.host or self._settings.host


def _session(settings: RendezvousSettings) -> NodeSession:
    if settings.job_directory is None:
        return NodeSession(settings, lambda: open_store(settings))
    return FailoverSession(settings, lambda: open_store(settings), kill_children)


def open_store(settings: RendezvousSettings) -> tuple[int, object]:
    """Open a round's store on the coordinator's host; return its port and the object that keeps it open."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=_timeout(settings))
    return store.port, store


def _timeout(settings: RendezvousSettings) -> timedelta:
    return timedelta(seconds=settings.read_timeout)


def create_handler(parameters: RendezvousParameters) -> MusterRendezvous:
    """Create a handler, for torchrun's registry."""
    log_to_stderr(socket.gethostname())
    environment = launch_environment()
    conf = dict(parameters.config)
    nodes = parameters.min_nodes, parameters.max_nodes
    handler = MusterRendezvous(parse_settings(parameters.endpoint, parameters.run_id, nodes, conf, environment))
    conf.get(ON_HANDLER, lambda handler: None)(handler)
    return handler


def ending(error: BaseException | None) -> tuple[int, str]:
    """Return the exit code and the reason of a launcher's end, from the exception raised by torchrun."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return 0, "succeeded"
    if isinstance(error, ChildFailedError):
        rank, failure = error.get_first_failure()
        exit = Exit(code=failure.exitcode) if failure.exitcode >= 0 else Exit(signal=-failure.exitcode)
        return exit.shell_code or INFRASTRUCTURE_FAILED, f"the worker of rank {rank} {exit}"
    lines = str(error).strip().splitlines()
    return INFRASTRUCTURE_FAILED, f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
