"""Measure through files whether nodes share a directory, how soon new files are visible, and how far clocks differ.

Clocks of two nodes cannot be compared directly, so only node 0 measures, on its own clock: it writes a ping, every
other node answers with a pong that contains that node's time, and node 0 records when it sees the pong. Half the round
trip is the delay of one new file (including both sides' polling); the pong's time minus the middle of the round trip is
the difference of the clocks, with an error of at most half the round trip.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

from muster.doctor.node.claim_probe import probe_claims

ROUNDS = 3
SMALL_FILES = 10
CANARY = "canary"
PRESENT, ABSENT = "here-", "absent-"  # followed by the node index; an absent node cannot run the probe


@dataclass(frozen=True)
class ProbeTimeouts:
    """How long a node waits, in seconds."""

    canary: float = 5.0  # for a directory created before the node was started
    others: float = 30.0  # for nodes that start later, or run a slow --setup


def poll_interval(nodes: int) -> float:
    """Return seconds between polls; all nodes list one directory, so more nodes poll less often."""
    return min(0.25, 0.01 * max(1.0, nodes / 4))


class SharedFilesystemProbe:
    """The measurements of one node."""

    def __init__(self, directory: str, node_index: int, nodes: int, timeouts: ProbeTimeouts) -> None:
        self._directory, self._node_index, self._nodes, self._timeouts = directory, node_index, nodes, timeouts
        self._poll = poll_interval(nodes)

    def run(self, canary: str) -> dict[str, Any]:
        """Return all measurements, without those that were not possible."""
        delay = self._wait_for_canary(canary)
        if delay is None:
            return {"seen": False}
        self._write(f"{PRESENT}{self._node_index}", "")
        found: dict[str, Any] = {"seen": True, "canary_s": delay, "small_file_s": self._time_small_files()}
        found["claims"] = probe_claims(self._directory, self._node_index)
        if self._nodes > 1:
            found.update(self._measure_others() if self._node_index == 0 else self._answer_pings())
        return found

    def _wait_for_canary(self, text: str) -> float | None:
        began = time.monotonic()
        while True:
            if CANARY in self._names() and self._read(CANARY) == text:
                return time.monotonic() - began
            if time.monotonic() - began > self._timeouts.canary:
                return None
            time.sleep(self._poll)

    def _time_small_files(self) -> float:
        """Return the median time to write, rename, read and remove a small file, as runs do continually."""
        taken = []
        for number in range(SMALL_FILES):
            name = f"small-{self._node_index}-{number}"
            began = time.monotonic()
            self._write(name, "x" * 512)
            self._read(name)
            os.unlink(os.path.join(self._directory, name))
            taken.append(time.monotonic() - began)
        return statistics.median(taken)

    # -- node 0 ---------------------------------------------------------------------------------------------------

    def _measure_others(self) -> dict[str, Any]:
        others = set(range(1, self._nodes))
        present = self._wait_for_nodes(others)
        rounds = [self._ping(number, present) for number in range(ROUNDS)]
        self._write("done", "")
        answered = {
            node_index: [times[node_index] for times in rounds if node_index in times] for node_index in present
        }
        return {
            "met": {str(node_index): _summary(trips) for node_index, trips in answered.items() if trips},
            "missed": sorted(node_index for node_index in others if not answered.get(node_index)),
        }

    def _ping(self, number: int, node_indexes: set[int]) -> dict[int, tuple[float, float]]:
        """Run one round; return for each answering node the round trip and how far its clock is ahead of ours."""
        trips: dict[int, tuple[float, float]] = {}
        wall, began = time.time(), time.monotonic()
        self._write(f"ping-{number}", "")
        while set(trips) != node_indexes and time.monotonic() - began < self._timeouts.others:
            names = self._names()
            for node_index in node_indexes - set(trips):
                name = f"pong-{number}-{node_index}"
                stamp = self._read(name) if name in names else None
                if stamp is not None:
                    trip = time.monotonic() - began
                    trips[node_index] = (trip, float(stamp) - (wall + trip / 2))
            time.sleep(self._poll)
        return trips

    def _wait_for_nodes(self, wanted: set[int]) -> set[int]:
        """Wait until each node is present or absent, or until the timeout; return those present."""
        deadline = time.monotonic() + self._timeouts.others
        while True:
            names = self._names()
            present = {node_index for node_index in wanted if f"{PRESENT}{node_index}" in names}
            absent = {node_index for node_index in wanted if f"{ABSENT}{node_index}" in names}
            if present | absent == wanted or time.monotonic() > deadline:
                return present
            time.sleep(self._poll)

    # -- the other nodes ------------------------------------------------------------------------------------------

    def _answer_pings(self) -> dict[str, Any]:
        """Answer every ping until node 0 is done or has timed out."""
        if not self._wait_for_nodes({0}):
            return {"missed": [0]}
        answered: set[int] = set()
        last = time.monotonic()
        while time.monotonic() - last < 2 * self._timeouts.others:
            names = self._names()
            for number in sorted(set(range(ROUNDS)) - answered):
                if f"ping-{number}" in names:
                    self._write(f"pong-{number}-{self._node_index}", repr(time.time()))
                    answered.add(number)
                    last = time.monotonic()
            if "done" in names:
                break
            time.sleep(self._poll)
        return {"missed": [] if answered else [0]}

    # -- files ----------------------------------------------------------------------------------------------------

    def _names(self) -> set[str]:
        """List the directory; opening files first would make a network filesystem cache that they do not exist."""
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
        """Write by rename, so that a visible file is complete."""
        path = os.path.join(self._directory, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)


def _summary(trips: list[tuple[float, float]]) -> dict[str, float]:
    """Take the delay from the slowest round trip, and the clock from the fastest, which has the smallest error."""
    quickest = min(trips)
    return {
        "delay_s": max(trip for trip, _ in trips) / 2,
        "clock_s": quickest[1],
        "clock_error_s": quickest[0] / 2,
    }


def probe_shared_filesystem(config: dict[str, Any], node_index: int) -> dict[str, Any]:
    """Run the probe; errors of the filesystem are part of the result."""
    timeouts = ProbeTimeouts(**config["timeouts"])
    try:
        return SharedFilesystemProbe(config["directory"], node_index, config["nodes"], timeouts).run(config["canary"])
    except OSError as error:
        return {"seen": True, "error": f"{error.strerror or error} ({error.filename or config['directory']})"}
