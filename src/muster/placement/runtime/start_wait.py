"""The wait for a replica: which parts are late, when to report that, and a probe that cannot succeed. Pure."""

from __future__ import annotations

from muster.placement.runtime.health import READY, STARTING

FIRST_REPORT_S = 10.0  # most programs of tests are ready by then
REPORT_INTERVAL_S = 60.0
WRONG_PATH_S = 60.0  # of nothing but 404: a server may open its port some time before it has all its paths


class StartWait:
    """Takes the reports of the parts. All times are those of the caller's clock, in seconds."""

    def __init__(self, parts: int, began: float) -> None:
        self._began, self._due = began, began + FIRST_REPORT_S
        self._states = dict.fromkeys(range(parts), STARTING)
        self._details = dict.fromkeys(range(parts), "")
        self._wrong_path: dict[int, float] = {}  # by part: since when its probe is answered with 404

    def observe(self, part: int, state: str, detail: str, now: float) -> None:
        """Take a report; `detail` is the reason why the last probe failed."""
        self._states[part], self._details[part] = state, detail
        if state == STARTING and " answered 404" in detail:
            self._wrong_path.setdefault(part, now)
        else:
            self._wrong_path.pop(part, None)

    @property
    def late(self) -> list[int]:
        """The parts that are not ready."""
        return [part for part, state in self._states.items() if state != READY]

    def hopeless(self, now: float) -> tuple[int, str] | None:
        """Return the part whose probe cannot succeed, and why; None if each may."""
        for part, since in self._wrong_path.items():
            if now - since >= WRONG_PATH_S:
                advice = "choose a path that the program has, with probe=Probe(path=...)"
                return part, f"{self._details[part]} for {now - since:.0f} s: {advice}"
        return None

    def report(self, now: float) -> str | None:
        """Return what the replica waits for, if that is to be reported now; first after FIRST_REPORT_S."""
        if now < self._due or not self.late:
            return None
        self._due = now + REPORT_INTERVAL_S
        why = self._details[self.late[0]] or "not probed yet"
        return f"not ready after {now - self._began:.0f} s: {why}"
