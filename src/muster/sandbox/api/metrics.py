"""What has happened so far, for people and for Prometheus."""

from __future__ import annotations

import socket
import time
from collections import Counter
from typing import Any

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BUSIEST = 10
RATE_S = 10  # whole seconds over which executions are counted for the rate
WELL = ("ok", "completed")  # of a program, of a cell
HOST = socket.gethostname()


class Histogram:
    """How long something took, in buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.total += seconds
        for index, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self.counts[index] += 1
                return
        self.counts[-1] += 1

    def lines(self, name: str) -> list[str]:
        lines, so_far = [f"# TYPE {name} histogram"], 0
        for bound, count in zip((*(f"{bound:g}" for bound in BUCKETS), "+Inf"), self.counts):
            so_far += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {so_far}')
        return [*lines, f"{name}_sum {self.total:.6f}", f"{name}_count {so_far}"]


class Metrics:
    """Counters of the whole server."""

    def __init__(self) -> None:
        self.executions: Counter[tuple[str, str]] = Counter()  # language, status
        self.requests: Counter[tuple[str, int]] = Counter()  # path, HTTP status
        self.run_s, self.wait_s = Histogram(), Histogram()
        self.output_bytes = 0
        self._lately: Counter[int] = Counter()  # how many ended in each of the last seconds

    def ended(self, language: str, status: str, waited: float, ran: float) -> None:
        self.executions[language, status] += 1
        self.wait_s.add(waited)
        self.run_s.add(ran)
        second = int(time.monotonic())
        self._lately[second] += 1
        if len(self._lately) > 2 * RATE_S:
            self._lately = Counter({when: count for when, count in self._lately.items() if when >= second - RATE_S})

    def summary(self) -> dict[str, float]:
        """How many ended so far, how many of them not well, and how many a second, of the last whole seconds."""
        now = int(time.monotonic())
        lately = sum(count for second, count in self._lately.items() if now - RATE_S <= second < now)
        well = sum(count for (_, status), count in self.executions.items() if status in WELL)
        executed = sum(self.executions.values())
        return {"executed": executed, "failed": executed - well, "rate": round(lately / RATE_S, 2)}

    def text(self, gauges: dict[str, float], counters: dict[str, float], labels: dict[str, str]) -> str:
        """Prometheus' text format."""
        lines = ["# TYPE muster_sandbox_executions_total counter"]
        lines += [
            f'muster_sandbox_executions_total{{language="{label(language)}",status="{label(status)}"}} {count}'
            for (language, status), count in sorted(self.executions.items())
        ]
        lines += ["# TYPE muster_sandbox_requests_total counter"]
        lines += [
            f'muster_sandbox_requests_total{{path="{label(path)}",code="{code}"}} {count}'
            for (path, code), count in sorted(self.requests.items())
        ]
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, value in values.items():
                lines += [f"# TYPE muster_sandbox_{name} {kind}", f"muster_sandbox_{name} {value:g}"]
        lines += self.run_s.lines("muster_sandbox_run_seconds") + self.wait_s.lines("muster_sandbox_wait_seconds")
        named = ",".join(f'{name}="{label(value)}"' for name, value in sorted(labels.items()))
        lines += ["# TYPE muster_sandbox_info gauge", f"muster_sandbox_info{{{named}}} 1"]
        return "\n".join(lines) + "\n"


def label(value: str) -> str:
    """A label's value as Prometheus reads it.

    >>> label('a"b')
    'a\\\\"b'
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def busiest(workers: list[tuple[int, float, int, str]]) -> list[dict[str, Any]]:
    """The workers that ran longest: number, seconds, executions, state."""
    ranked = sorted(workers, key=lambda one: -one[1])[:BUSIEST]
    return [
        {"worker": number, "busy_s": round(seconds, 3), "executions": count, "state": state}
        for number, seconds, count, state in ranked
    ]
