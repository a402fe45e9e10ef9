"""The nodes meet in a directory: is it shared, how soon is a new file seen elsewhere, how far apart are the clocks?

Clocks of two nodes cannot be compared directly, so rank 0 measures alone, on its own clock: it writes a ping, every
other node answers with a pong that holds that node's time, and rank 0 notes when it sees the pong. Half the round trip
is the delay of one new file (with both sides' polling); the pong's time against the middle of the round trip is the
clocks' difference, right to half the round trip whatever the filesystem does.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

ROUNDS = 3
SMALL_FILES = 10
CANARY = "canary"
HERE, ABSENT = "here-", "absent-"  # with the rank after it; absent is a node that can do no more than say so


@dataclass(frozen=True)
class Patience:
    """How long a node waits, in seconds."""

    canary: float = 5.0  # for a directory that was there before the node was started
    others: float = 30.0  # for nodes that start later, or run a slow --setup


def poll_interval(nodes: int) -> float:
    """All nodes list one directory: the more they are, the more seldom each looks."""
    return min(0.25, 0.01 * max(1.0, nodes / 4))


class SharedFilesystemProbe:
    """One node's part of it."""

    def __init__(self, directory: str, rank: int, nodes: int, patience: Patience) -> None:
        self._directory, self._rank, self._nodes, self._patience = directory, rank, nodes, patience
        self._poll = poll_interval(nodes)

    def attend(self, canary: str) -> dict[str, Any]:
        """Everything measured here; what could not be measured is left out."""
        seen = self._await_canary(canary)
        if seen is None:
            return {"seen": False}
        self._write(f"{HERE}{self._rank}", "")
        found: dict[str, Any] = {"seen": True, "canary_s": seen, "small_file_s": self._time_small_files()}
        if self._nodes > 1:
            found.update(self._leader() if self._rank == 0 else self._answer())
        return found

    def _await_canary(self, text: str) -> float | None:
        began = time.monotonic()
        while True:
            if CANARY in self._names() and self._read(CANARY) == text:
                return time.monotonic() - began
            if time.monotonic() - began > self._patience.canary:
                return None
            time.sleep(self._poll)

    def _time_small_files(self) -> float:
        """Median time to write a small file, rename it, read it and remove it: what a run does all the time."""
        taken = []
        for number in range(SMALL_FILES):
            name = f"small-{self._rank}-{number}"
            began = time.monotonic()
            self._write(name, "x" * 512)
            self._read(name)
            os.unlink(os.path.join(self._directory, name))
            taken.append(time.monotonic() - began)
        return statistics.median(taken)

    # -- rank 0 ---------------------------------------------------------------------------------------------------

    def _leader(self) -> dict[str, Any]:
        others = set(range(1, self._nodes))
        present = self._await_arrival(others)
        rounds = [self._ping(number, present) for number in range(ROUNDS)]
        self._write("done", "")
        answered = {rank: [times[rank] for times in rounds if rank in times] for rank in present}
        return {
            "met": {str(rank): _summary(trips) for rank, trips in answered.items() if trips},
            "missed": sorted(rank for rank in others if not answered.get(rank)),
        }

    def _ping(self, number: int, ranks: set[int]) -> dict[int, tuple[float, float]]:
        """One round: for each rank that answers, the round trip and how far its clock is ahead of ours."""
        trips: dict[int, tuple[float, float]] = {}
        wall, began = time.time(), time.monotonic()
        self._write(f"ping-{number}", "")
        while set(trips) != ranks and time.monotonic() - began < self._patience.others:
            names = self._names()
            for rank in ranks - set(trips):
                name = f"pong-{number}-{rank}"
                stamp = self._read(name) if name in names else None
                if stamp is not None:
                    trip = time.monotonic() - began
                    trips[rank] = (trip, float(stamp) - (wall + trip / 2))
            time.sleep(self._poll)
        return trips

    def _await_arrival(self, wanted: set[int]) -> set[int]:
        """Those of the wanted that have come, once nobody else is to be expected."""
        deadline = time.monotonic() + self._patience.others
        while True:
            names = self._names()
            here = {rank for rank in wanted if f"{HERE}{rank}" in names}
            absent = {rank for rank in wanted if f"{ABSENT}{rank}" in names}
            if here | absent == wanted or time.monotonic() > deadline:
                return here
            time.sleep(self._poll)

    # -- the others -----------------------------------------------------------------------------------------------

    def _answer(self) -> dict[str, Any]:
        """Answer every ping, until rank 0 is done or has been silent for too long."""
        if not self._await_arrival({0}):
            return {"missed": [0]}
        answered: set[int] = set()
        last = time.monotonic()
        while time.monotonic() - last < 2 * self._patience.others:
            names = self._names()
            for number in sorted(set(range(ROUNDS)) - answered):
                if f"ping-{number}" in names:
                    self._write(f"pong-{number}-{self._rank}", repr(time.time()))
                    answered.add(number)
                    last = time.monotonic()
            if "done" in names:
                break
            time.sleep(self._poll)
        return {"missed": [] if answered else [0]}

    # -- files ----------------------------------------------------------------------------------------------------

    def _names(self) -> set[str]:
        """Listing first: a network filesystem may remember for long that a file was not there."""
        try:
            return set(os.listdir(self._directory))
        except OSError:
            return set()

    def _read(self, name: str) -> str | None:
        try:
            with open(os.path.join(self._directory, name), encoding="utf-8") as file:
                return file.read()
        except OSError:
            return None

    def _write(self, name: str, text: str) -> None:
        """By rename, so that a file that is seen is whole."""
        path = os.path.join(self._directory, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)


def _summary(trips: list[tuple[float, float]]) -> dict[str, float]:
    """The slowest file counts for the delay; the quickest round trip knows the clock best."""
    quickest = min(trips)
    return {
        "delay_s": max(trip for trip, _ in trips) / 2,
        "clock_s": quickest[1],
        "clock_error_s": quickest[0] / 2,
    }


def attend(order: dict[str, Any], rank: int) -> dict[str, Any]:
    """This node's part of the meeting that the order describes; a filesystem that fails is told, not raised."""
    patience = Patience(**order["patience"])
    try:
        return SharedFilesystemProbe(order["directory"], rank, order["nodes"], patience).attend(order["canary"])
    except OSError as error:
        return {"seen": True, "error": f"{error.strerror or error} ({error.filename or order['directory']})"}
