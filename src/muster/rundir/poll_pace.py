"""How often a file is polled: less often while nothing changes, and on a slow filesystem. No I/O, no clock."""

from __future__ import annotations

POLL_COST_FACTOR = 20.0  # a poll that took 50 ms is repeated after a second: pollers use at most 5 % of their time
MAX_SLOWED_S = 2.0  # a filesystem that hung once is polled again soon


def slowed(after: float, seconds: float) -> float:
    """Return the seconds until the next poll, planned for `after`, if the last one took `seconds`."""
    return max(after, min(POLL_COST_FACTOR * seconds, MAX_SLOWED_S))


class PollPace:
    """The seconds between polls: `shortest` after news, then longer and longer up to `longest`."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._next = shortest

    def after(self, news: bool, seconds: float) -> float:
        """Return the seconds until the next poll. `seconds`: duration of an operation of the last one."""
        current = self._shortest if news else self._next
        self._next = min(2 * current, self._longest)
        return slowed(current, seconds)
