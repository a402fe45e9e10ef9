"""How long a process was stopped: by SIGSTOP, by `scontrol suspend`, with its virtual machine, or by an overload.

CLOCK_MONOTONIC goes on while a process is stopped, and nothing reports the stop. A process that looks at a clock
regularly sees it as a gap. Part of the supervisor's program.
"""

from __future__ import annotations

STALL_S = 1.0  # a process that has not looked at the clock for this long was stopped; it looks twice as often


class RunningTime:
    """Measures for how long a process was stopped. All times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self.stopped = 0.0  # sum of all gaps, each without the STALL_S that are no gap
        self._ran_at: float | None = None

    def observe(self, now: float) -> float:
        """Record that the process runs at `now`; return for how long it did not run before, 0 if it did."""
        gap = 0.0 if self._ran_at is None else now - self._ran_at
        self._ran_at = now
        if gap <= STALL_S:
            return 0.0
        self.stopped += gap - STALL_S
        return gap

    def running(self, now: float) -> float:
        """Record that the process runs at `now`; return that time on a clock that hardly advances in a gap.

        It advances by STALL_S in each: on a host where every step of a program takes long, its timers still fire.
        """
        self.observe(now)
        return now - self.stopped
