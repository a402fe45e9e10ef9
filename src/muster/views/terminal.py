"""A live run on a terminal: `muster top`, and what `muster run` shows until the driver's output begins.

Renderables for rich; each rendering looks at the run directory anew, but not more often than a person can read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from muster.rundir import RunPaths
from muster.rundir.log_tail import tail_of
from muster.views import diagnosis
from muster.views.hosts import folded
from muster.views.metrics_file import MetricsFile
from muster.views.phases import LOOKS, Phase
from muster.views.record import RunReader, RunRecord, words
from muster.views.sanitize import log_line, printable
from muster.views.service_lines import live_lines, ready_line
from muster.views.services import services
from muster.views.summary import duration
from muster.views.timeline import AttemptTimeline, Timeline, timeline

VIEW_POLL_S = 0.5
BLOCK = 10  # cells between two gaps
LABEL = 6  # columns for the rank that a row of cells begins with
MOST_ROWS = 12
NAMES = 3  # lines for what there may be many of

# A cell that stands for several nodes shows the one that most deserves to be seen.
WORST_FIRST = (
    Phase.LOST,
    Phase.SUBMITTED,
    Phase.PENDING,
    Phase.LAUNCHING,
    Phase.ARRIVED,
    Phase.STARTING,
    Phase.SERVICES,
    Phase.JOINED,
    Phase.FINISHING,
    Phase.SPARE,
    Phase.DRIVER,
    Phase.GONE,
)


class View:
    """What there is to see, as of now."""

    def __init__(self, run: RunPaths, clock: Callable[[], float] = time.time) -> None:
        self._reader, self._polled_at = RunReader(run, clock), 0.0
        self._metrics = MetricsFile(run)
        self.run, self.seen = self._read()

    def poll(self) -> RunRecord:
        """Read again, if the last time is a while ago."""
        if time.monotonic() - self._polled_at >= VIEW_POLL_S:
            self.run, self.seen = self._read()
        return self.run

    def _read(self) -> tuple[RunRecord, Timeline]:
        run = self._reader.read()
        self._polled_at = time.monotonic()
        self._metrics.refresh(run)
        return run, timeline(run)


class BringUpView(View):
    """A few lines: the nodes, and what is waited for."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.poll()
        attempt = self.seen.attempts[-1]
        yield from cells(attempt, options.max_width, 6, options.ascii_only)
        yield counts(attempt, options.ascii_only)
        for service in services(self.run)[:NAMES]:
            yield Text(printable(f"service {ready_line(service)}"), no_wrap=True, overflow="crop")
        yield waiting(self.run, self.seen)


class Top(View):
    """The whole screen."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.poll()
        width, height = options.max_width, options.height or console.height
        lines = [*self._lines(width, options.ascii_only)]
        lines += _driver_tail(self.run, height - len(lines) - 1)
        for line in lines[: height - 1]:
            line.truncate(width, overflow="crop" if options.ascii_only else "ellipsis")
            yield line

    def _lines(self, width: int, ascii_only: bool) -> Iterator[Text]:
        run, seen = self.run, self.seen
        attempt = seen.attempts[-1]
        yield header(run, seen)
        yield waiting(run, seen)
        yield Text()
        yield from cells(attempt, width, MOST_ROWS, ascii_only)
        yield counts(attempt, ascii_only)
        if (away := diagnosis.missing(attempt)) and run.live:
            yield Text(f"missing: {folded(node.host for node in away[: diagnosis.MOST_NAMED])}", style="yellow")
        yield from live_lines(services(run), width, ascii_only)
        for cycle in attempt.cycles[:-1][-NAMES:]:
            yield Text(printable(f"cycle {cycle.number} ended: {cycle.reason or 'no reason was recorded'}"))
        yield Text()
        yield from happenings(run, seen, 5)


def header(run: RunRecord, seen: Timeline) -> Text:
    """Who it is, and how it is."""
    attempt, state = seen.attempts[-1], words(run.status.get("state"))
    colour = {"succeeded": "green", "failed": "red", "stopped": "yellow"}.get(state, "cyan")
    text = Text.assemble((printable(run.run_id), "bold"), "  ", (printable(state), f"bold {colour}"))
    parts = [duration(seen.wall), f"{len(attempt.nodes)} nodes"]
    parts += [f"cycle {attempt.cycles[-1].number}"] if attempt.cycles[-1].number else []
    parts += [f"attempt {attempt.number}"] if attempt.number else []
    parts += [f"Slurm job {run.status['job_id']}"] if run.status.get("job_id") else []
    return text.append(printable("  " + "  ".join(parts)))


def waiting(run: RunRecord, seen: Timeline) -> Text:
    """What it waits for; of a run that is over, how it ended."""
    waits = diagnosis.waits_for(run, seen)
    if waits is None:
        return Text(printable(words(run.status.get("end_reason"))))
    quiet = diagnosis.silence(run)
    silent = f"; no word from it for {duration(quiet)}: its leader may be gone" if quiet else ""
    return Text(printable(f"{waits[0]}, for {duration(run.now - waits[1])}{silent}"))


def cells(attempt: AttemptTimeline, width: int, most_rows: int, ascii_only: bool) -> Iterator[Text]:
    """A cell for each node by its phase, a row for as many as fit; where rows are few, one for several nodes."""
    in_row = max(1, (min(width, 120) - LABEL) // (BLOCK + 1)) * BLOCK
    phases = [node.phase for node in attempt.nodes]
    each = max(1, -(-len(phases) // (in_row * most_rows)))
    shown = [min(phases[at : at + each], key=WORST_FIRST.index) for at in range(0, len(phases), each)]
    for first in range(0, len(shown), in_row):
        row = Text(f"{first * each:>{LABEL - 1}} ", style="bright_black", no_wrap=True)
        for number, phase in enumerate(shown[first : first + in_row]):
            row.append(" " if number and number % BLOCK == 0 else "")
            row.append(_sign(phase, ascii_only), style=LOOKS[phase].colour)
        yield row
    if each > 1:
        yield Text(f"{'':{LABEL}}each cell is {each} nodes, and shows the one that is furthest behind", "bright_black")


def counts(attempt: AttemptTimeline, ascii_only: bool) -> Text:
    """How many nodes are in which phase: the key to the cells, too."""
    text = Text(" " * LABEL)
    for phase, nodes in diagnosis.last_phases(attempt).items():
        text.append(_sign(phase, ascii_only), style=LOOKS[phase].colour).append(
            f" {LOOKS[phase].title} {len(nodes)}   "
        )
    return text


def happenings(run: RunRecord, seen: Timeline, most: int) -> Iterator[Text]:
    """The last marks of the timeline, with their times."""
    for mark in seen.attempts[-1].marks[-most:]:
        style = "red" if mark.kind in ("lost", "stalled") or mark.text.endswith(": failed") else ""
        yield Text(f"{duration(mark.time - seen.start):>14}  {printable(mark.text)}", style=style)


def plain_line(run: RunRecord, seen: Timeline) -> str:
    """The same for where there is no terminal: one line, to be printed when it has changed."""
    nodes = [f"{len(nodes)} {LOOKS[phase].title}" for phase, nodes in diagnosis.last_phases(seen.attempts[-1]).items()]
    waits = diagnosis.waits_for(run, seen)
    said = waits[0] if waits else words(run.status.get("end_reason"))
    serving = [f"{service.name} {service.ready}/{service.wanted}" for service in services(run)]
    parts = [words(run.status.get("state")), ", ".join(nodes) or "no nodes", ", ".join(serving), said]
    return printable(": ".join(part for part in parts if part)).replace("\t", " ")


def _sign(phase: Phase, ascii_only: bool) -> str:
    return LOOKS[phase].letter if ascii_only else LOOKS[phase].glyph


def _driver_tail(run: RunRecord, lines: int) -> list[Text]:
    """As much of the driver's output as there is room for."""
    attempt = RunPaths(run.root).newest_attempt()
    said = tail_of(attempt.driver_log, max(0, lines - 2), 1 << 16) if attempt is not None and lines > 2 else []
    return [Text(), *(Text(f"  | {log_line(line)}", no_wrap=True) for line in said)] if said else []
