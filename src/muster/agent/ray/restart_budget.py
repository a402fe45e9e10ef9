"""How often, and how soon, Ray's control service (GCS) is restarted. Pure.

    the GCS exits                     pause before the restart
    after it has answered             none
    before it has answered            FIRST_PAUSE_S, doubled after each further exit

It is not restarted after MAX_FAILED_STARTS exits in a row before an answer, nor after MAX_RESTARTS within WINDOW_S.
"""

from __future__ import annotations

from collections import deque

MAX_FAILED_STARTS = 5  # their pauses take 7.5 s: a GCS that cannot start does not hold the nodes for longer
FIRST_PAUSE_S = 0.5
MAX_RESTARTS = 30  # within WINDOW_S: more of them leave a driver little time to work
WINDOW_S = 3600.0


class RestartBudget:
    """Counts the restarts of one GCS. `restarts` is their number, `refusal` why there is no further one."""

    def __init__(self) -> None:
        self.restarts = 0
        self.refusal = ""
        self._recent: deque[float] = deque()
        self._unanswered = 0  # starts in a row before an answer

    def spend(self, now: float) -> float | None:
        """Count a restart and return the pause before it in seconds; None if there is none left.

        >>> budget = RestartBudget()
        >>> [budget.spend(now) for now in range(6)]
        [0.0, 0.5, 1.0, 2.0, 4.0, None]
        >>> budget.refusal
        '5 restarts in a row failed'
        """
        while self._recent and now - self._recent[0] >= WINDOW_S:
            self._recent.popleft()
        if self._unanswered >= MAX_FAILED_STARTS:
            self.refusal = f"{MAX_FAILED_STARTS} restarts in a row failed"
            return None
        if len(self._recent) >= MAX_RESTARTS:
            self.refusal = f"it was restarted {MAX_RESTARTS} times within {WINDOW_S / 60:g} minutes"
            return None
        pause = FIRST_PAUSE_S * 2 ** (self._unanswered - 1) if self._unanswered else 0.0
        self._recent.append(now)
        self._unanswered += 1
        self.restarts += 1
        return pause

    def answered(self) -> None:
        """Note that the restarted GCS answers: the next restart has no pause."""
        self._unanswered = 0
