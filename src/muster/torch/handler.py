"""The rendezvous as torchrun wants it. Imported by torch alone, or by what needs torch anyway."""

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
from muster.torch.launch_env import launch_environment
from muster.torch.plugin import BACKEND
from muster.torch.session import JobOver, NodeSession, Refused, Round, Unreachable
from muster.torch.settings import ON_HANDLER, RendezvousSettings, settings_of

logger = logging.getLogger(__name__)


class MusterRendezvous(RendezvousHandler):
    """One node's rendezvous: a session, in torchrun's words."""

    def __init__(self, settings: RendezvousSettings) -> None:
        self._settings = settings
        self._session = NodeSession(settings, lambda: open_store(settings))

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        """Workers use the round's store: MASTER_PORT is open before they start, and nobody has to find a free one."""
        return True

    @property
    def outcome(self) -> RunOutcome | None:
        """How the job ended, once the coordinator has said so."""
        return self._session.outcome

    def next_rendezvous(self) -> RendezvousInfo:
        """Blocks until this node has a rank, which a spare may never get.

        A job that succeeded without it ends the process with 0. torch's own RendezvousGracefulExitError would not: 2.13
        stumbles over the result that is not there, and exits with 1.
        """
        try:
            round, store = self._session.join(self._reach_store)
        except JobOver as over:
            if over.outcome.exit_code == 0:
                logger.info("the job succeeded without this node")
                raise SystemExit(0) from over
            late = over.outcome.phase == JobState.GATHERING.value
            raise (RendezvousTimeoutError if late else RendezvousClosedError)(str(over)) from over
        except Unreachable as error:
            raise RendezvousConnectionError(str(error)) from error
        except Refused as error:
            raise RendezvousStateError(str(error)) from error
        where = RendezvousStoreInfo(self._settings.host, round.port)
        return RendezvousInfo(PrefixStore(f"muster/{round.number}", store), round.rank, round.size, where)

    def num_nodes_waiting(self) -> int:
        """What makes torchrun begin again: the round is over, or the job is, or the coordinator is gone.

        A spare that waits for its turn does not count.
        """
        return int(self._session.is_called_back)

    def is_closed(self) -> bool:
        return self._session.is_over

    def set_closed(self) -> None:
        """The same as `shutdown`."""
        self.shutdown()

    def shutdown(self) -> bool:
        """torchrun calls this last, success or not, and an exception here would hide its own; which one is under way
        says how it ended."""
        try:
            code, reason = ending(sys.exc_info()[1])
            self._session.leave(code, reason)
        except Exception as error:
            logger.warning("leaving the rendezvous failed: %s", error)
            return False
        return True

    def withdraw(self, reason: str) -> None:
        """This node goes by a signal; torchrun does not call `shutdown` then."""
        self._session.withdraw(reason)

    def _reach_store(self, round: Round) -> Any:
        try:
            return TCPStore(self._settings.host, round.port, wait_for_workers=False, timeout=_timeout(self._settings))
        except RuntimeError as error:
            raise RendezvousConnectionError(f"the store of round {round.number}: {error}") from error


def open_store(settings: RendezvousSettings) -> tuple[int, object]:
    """A round's store, on the coordinator's host: its port, and what keeps it open."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=_timeout(settings))
    return store.port, store


def _timeout(settings: RendezvousSettings) -> timedelta:
    return timedelta(seconds=settings.read_timeout)


def create_handler(parameters: RendezvousParameters) -> MusterRendezvous:
    """What torchrun's registry calls."""
    log_to_stderr(socket.gethostname())
    place = launch_environment()
    conf = dict(parameters.config)
    nodes = parameters.min_nodes, parameters.max_nodes
    handler = MusterRendezvous(settings_of(parameters.endpoint, parameters.run_id, nodes, conf, place))
    conf.get(ON_HANDLER, lambda handler: None)(handler)
    return handler


def ending(error: BaseException | None) -> tuple[int, str]:
    """A launcher's end as exit code and words, from the exception with which torchrun is being left."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return 0, "succeeded"
    if isinstance(error, ChildFailedError):
        rank, failure = error.get_first_failure()
        exit = Exit(code=failure.exitcode) if failure.exitcode >= 0 else Exit(signal=-failure.exitcode)
        return exit.shell_code or INFRASTRUCTURE_FAILED, f"the worker of rank {rank} {exit}"
    said = str(error).strip().splitlines()
    return INFRASTRUCTURE_FAILED, f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
