"""When a failed replica is restarted, and when it is not. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """How often and how soon a replica is restarted, and how long a start may take; times in seconds."""

    max_restarts: int = 3  # within `window`
    window: float = 600.0
    backoff: float = 1.0  # the first pause; each further one in the window is twice as long
    max_backoff: float = 60.0
    start_timeout: float = 1800.0  # large models load slowly

    def __post_init__(self) -> None:
        for name in ("max_restarts", "window", "backoff", "max_backoff", "start_timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")


class Budget:
    """The restart budget of one replica. Restarts before the window do not count."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.restarts = 0  # in total
        self._recent: deque[float] = deque()

    def spend(self, now: float) -> float | None:
        """Count a restart and return the pause before it in seconds; None if the budget is used up.

        >>> budget = Budget(Policy(max_restarts=2, window=100))
        >>> [budget.spend(now) for now in (0, 1, 2, 200)]
        [1.0, 2.0, None, 1.0]
        """
        while self._recent and now - self._recent[0] >= self.policy.window:
            self._recent.popleft()
        if len(self._recent) >= self.policy.max_restarts:
            return None
        pause = min(self.policy.max_backoff, self.policy.backoff * 2.0 ** len(self._recent))
        self._recent.append(now)
        self.restarts += 1
        return pause
