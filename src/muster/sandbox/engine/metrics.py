"""Counters and latencies of the server, for /load and for Prometheus."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from muster.prometheus import Sample, family, sample, text

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds
BUSIEST_WORKERS = 10  # in the load summary
RATE_WINDOW_S = 10  # whole seconds over which executions are counted for the rate
SUCCESSES = ("ok", "completed")  # statuses of a program, of a cell
HOST = socket.gethostname()
PREFIX = "muster_sandbox_"


class Histogram:
    """Durations by bucket."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.total_s += seconds
        for index, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self.counts[index] += 1
                return
        self.counts[-1] += 1

    def lines(self, name: str) -> list[str]:
        lines, count = family(name, "histogram", ()), 0
        for bound, added in zip((*(f"{bound:g}" for bound in BUCKETS), "+Inf"), self.counts):
            count += added
            lines.append(sample(f"{name}_bucket", {"le": bound}, count))
        return [*lines, sample(f"{name}_sum", {}, self.total_s), sample(f"{name}_count", {}, count)]


class Metrics:
    """Counters of the whole server."""

    def __init__(self) -> None:
        self.executions: Counter[tuple[str, str]] = Counter()  # language, status
        self.requests: Counter[tuple[str, int]] = Counter()  # path, HTTP status
        self.run_s, self.wait_s = Histogram(), Histogram()
        self.output_bytes = 0
        self._recent: Counter[int] = Counter()  # executions that ended, by second of the monotonic clock

    def ended(self, language: str, status: str, waited: float, ran: float) -> None:
        self.executions[language, status] += 1
        self.wait_s.add(waited)
        self.run_s.add(ran)
        second = int(time.monotonic())
        self._recent[second] += 1
        if len(self._recent) > 2 * RATE_WINDOW_S:
            kept = {when: count for when, count in self._recent.items() if when >= second - RATE_WINDOW_S}
            self._recent = Counter(kept)

    def summary(self) -> dict[str, float]:
        """Return the number of executions, of failed ones, and the rate per second over the last whole seconds."""
        now = int(time.monotonic())
        recent = sum(count for second, count in self._recent.items() if now - RATE_WINDOW_S <= second < now)
        succeeded = sum(count for (_, status), count in self.executions.items() if status in SUCCESSES)
        executed = sum(self.executions.values())
        return {"executed": executed, "failed": executed - succeeded, "rate": round(recent / RATE_WINDOW_S, 2)}

    def text(self, gauges: dict[str, float], counters: dict[str, float], labels: dict[str, str]) -> str:
        """Return all metrics in the text format of Prometheus; `labels` are those of the info metric."""
        executions: Iterable[Sample] = (
            ({"language": language, "status": status}, count)
            for (language, status), count in sorted(self.executions.items())
        )
        requests: Iterable[Sample] = (
            ({"path": path, "code": str(code)}, count) for (path, code), count in sorted(self.requests.items())
        )
        lines = family(f"{PREFIX}executions_total", "counter", executions)
        lines += family(f"{PREFIX}requests_total", "counter", requests)
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, value in values.items():
                lines += family(f"{PREFIX}{name}", kind, [({}, value)])
        lines += self.run_s.lines(f"{PREFIX}run_seconds") + self.wait_s.lines(f"{PREFIX}wait_seconds")
        return text([*lines, *family(f"{PREFIX}info", "gauge", [(dict(sorted(labels.items())), 1)])])


def busiest(workers: list[tuple[int, float, int, str]]) -> list[dict[str, Any]]:
    """Return the workers that ran longest; each is given as number, seconds, executions, state."""
    ranked = sorted(workers, key=lambda one: -one[1])[:BUSIEST_WORKERS]
    return [
        {"worker": number, "busy_s": round(seconds, 3), "executions": count, "state": state}
        for number, seconds, count, state in ranked
    ]
