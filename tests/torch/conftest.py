"""Nodes of a torchrun job on loopback: sessions in threads, or real launchers in processes."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.free_port import free_port
from tests.running import wait_for

from muster.torch.elastic_types import ElasticConfig
from muster.torch.session import NodeSession, Round
from muster.torch.settings import RendezvousSettings

DEADLINE_S = 120.0
REPOSITORY = Path(__file__).parents[2]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def child_failure(exit_code: int) -> Any:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    return ChildFailedError("train.py", {5: ProcessFailure(0, 1234, exit_code, "/no/such/file")})


class Player:
    """A node that joins rounds in a thread, as torchrun does."""

    def __init__(self, session: NodeSession) -> None:
        self.session = session
        self.rounds: list[Round] = []
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def join(self) -> Player:
        self._thread = threading.Thread(target=self._join, daemon=True)
        self._thread.start()
        return self

    def _join(self) -> None:
        try:
            self.rounds.append(self.session.join(lambda round: None)[0])
        except BaseException as error:
            self.error = error

    def joined(self) -> Round:
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "still at the barrier"
        if self.error is not None:
            raise self.error
        return self.rounds[-1]

    def leave(self, code: int, reason: str = "") -> threading.Thread:
        """Leave in a thread, as the first to leave waits for the others."""
        thread = threading.Thread(target=self.session.leave, args=(code, reason), daemon=True)
        thread.start()
        return thread


class Game:
    """Players of one job; the first one coordinates."""

    def __init__(self) -> None:
        self.port = free_port()
        self.players: list[Player] = []
        self._stores = itertools.count(1)

    def player(self, number: int, token: bytes = b"secret", is_host: bool | None = None, **plan: Any) -> Player:
        is_host = not self.players if is_host is None else is_host
        settings = self.settings(number, token, is_host, **plan)
        player = Player(NodeSession(settings, lambda: (next(self._stores), object())))
        self.players.append(player)
        return player

    def settings(self, number: int, token: bytes = b"secret", is_host: bool = False, **plan: Any) -> RendezvousSettings:
        return RendezvousSettings(
            "127.0.0.1",
            self.port,
            "run",
            ElasticConfig(**{"min_nodes": 2, "max_nodes": 2, **plan}),
            token,
            f"n{number}",
            number,
            is_host=is_host,
            read_timeout=DEADLINE_S,
        )

    def running(self, numbers: int, **plan: Any) -> list[Player]:
        """Start this many players; the round runs on the first ones."""
        players = [self.player(number, **plan).join() for number in range(numbers)]
        for player in players[: plan.get("max_nodes", 2)]:
            player.joined()
        return players

    def drop(self, player: Player) -> None:
        """Close the connection of a player, as if its process died."""
        session = player.session
        channel = wait_for("the player's connection", lambda: session._channel)  # a spare connects in its own time
        session._loop.call_soon_threadsafe(channel.close)


@pytest.fixture
def game() -> Iterator[Game]:
    game = Game()
    yield game
    leaving = [threading.Thread(target=player.session.withdraw, args=("left",)) for player in game.players]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join(DEADLINE_S)
    assert not any(player.session._thread.is_alive() for player in game.players), "a session's thread is left"


class Launchers:
    """Real launchers, each in a separate session as on a separate node. Output goes to files named by node."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory, self.port = directory, free_port()
        self._environment = environment
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int, module: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        rendezvous = ("--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "run")
        with open(self.directory / f"{node}.log", "wb") as log:
            self.processes[node] = subprocess.Popen(
                [sys.executable, *module.split(), *rendezvous, *words],
                cwd=self.directory,
                env={**self._environment, "MUSTER_TEST_NODE": str(node), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[node]

    def stock(self, node: int, *words: str) -> subprocess.Popen[bytes]:
        """Start `torchrun --rdzv-backend muster`."""
        return self.start(node, "-m torch.distributed.run", "--rdzv-backend", "muster", *words)

    def muster(self, node: int, *words: str) -> subprocess.Popen[bytes]:
        """Start `muster torchrun`."""
        return self.start(node, "-m muster.cli.main torchrun", "--node-rank", str(node), *words)

    def log(self, node: int) -> str:
        return (self.directory / f"{node}.log").read_text(errors="replace")

    def wait_for_line(self, node: int, text: str) -> None:
        wait_for(f"{text!r} of node {node}", lambda: text in self.log(node), instead=lambda: self.log(node))

    def codes(self) -> dict[int, int]:
        return {node: process.wait(DEADLINE_S) for node, process in self.processes.items()}

    def kill(self, node: int) -> None:
        """Kill the launcher and its workers at once, as when the host dies."""
        launcher = self.processes[node]
        os.kill(launcher.pid, signal.SIGSTOP)  # so that it starts nothing meanwhile
        for victim in [*children(launcher.pid), launcher.pid]:
            os.kill(victim, signal.SIGKILL)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def launchers(tmp_path: Path, entry_point: Path) -> Iterator[Launchers]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_"))}
    path = [str(entry_point), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    launchers = Launchers(tmp_path, {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))})
    yield launchers
    for node, process in launchers.processes.items():
        if process.poll() is None:
            launchers.kill(node)
        process.wait()


@pytest.fixture(scope="session")
def entry_point(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the entry points of pyproject.toml: .venv may contain an older version of them."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    group = text.partition('[project.entry-points."torchrun.handlers"]\n')[2].partition("\n\n")[0]
    directory = tmp_path_factory.mktemp("entry-point")
    package = directory / "raymuster-0.1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: raymuster\nVersion: 0.1.0\n")
    (package / "entry_points.txt").write_text("[torchrun.handlers]\n" + group.replace('"', "") + "\n")
    return directory
