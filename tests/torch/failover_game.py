"""Players of a torchrun job with failover."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.running import wait_for
from tests.torch.conftest import DEADLINE_S, Game, Player

from muster.torch.failover import FailoverSession
from muster.torch.session import NodeSession
from muster.torch.term_coordinator import TermCoordinator


class FailoverGame(Game):
    """Players of one job that share a directory; player 0 coordinates first."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.killed: list[int] = []  # numbers of the players whose workers were killed
        self._ports = itertools.count(1)

    def player(self, number: int, *words: Any, **plan: Any) -> Player:
        settings = self.settings(number, **{"failover": True, **plan})
        settings = replace(settings, job_directory=str(self.directory))
        kill: Callable[[], None] = lambda: self.killed.append(number)  # noqa: E731
        player = Player(FailoverSession(settings, lambda: (next(self._ports), object()), kill))
        self.players.append(player)
        return player

    def crash(self, player: Player) -> None:
        """End the player's connections and its thread, as if its process died."""
        session = player.session
        asyncio.run_coroutine_threadsafe(_crash(session), session._loop).result(DEADLINE_S)
        session._loop.call_soon_threadsafe(session._loop.stop)
        session._thread.join(DEADLINE_S)
        session._loop.close()
        self.players.remove(player)


async def _crash(session: NodeSession) -> None:
    term = session._coordinator
    if isinstance(term, TermCoordinator):
        term.end_of_term = "it has crashed"  # so that it does nothing while its tasks end
        term._server.close()
        for channel in term._channels.values():
            channel._writer.transport.abort()
    if session._channel is not None:
        session._channel._writer.transport.abort()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def recalled(*players: Player) -> None:
    for player in players:
        wait_for("the recall", lambda player=player: player.session.is_recalled)


def leave_all(*players: Player) -> list[int | None]:
    """Let torchrun succeed on these nodes; return the exit codes that they got."""
    for thread in [player.leave(0) for player in players]:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    outcomes = [player.session.outcome for player in players]
    return [outcome.exit_code if outcome is not None else None for outcome in outcomes]
