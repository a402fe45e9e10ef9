"""Live views of a run on a terminal, as rich renderables: `muster top`, and `muster run` until the driver's output.

Each rendering reads the run directory again, but not more often than a person can read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from muster.process.log_reader import tail_lines
from muster.rundir import RunPaths
from muster.views import diagnosis
from muster.views.hosts import folded
from muster.views.json_values import as_text
from muster.views.metrics_file import MetricsFile
from muster.views.phases import PHASE_STYLES, Phase
from muster.views.record import RunReader, RunRecord
from muster.views.sanitize import log_line, printable
from muster.views.service_lines import live_lines, ready_line
from muster.views.services import services
from muster.views.summary import duration
from muster.views.timeline import AttemptTimeline, Timeline, TimelineBuilder

VIEW_POLL_S = 0.5
BLOCK = 10  # cells between two gaps
LABEL = 6  # columns for the node index at the start of a row of cells
TOP_ROWS, BRING_UP_ROWS = 12, 6  # maximum rows of cells
MAX_LISTED = 3  # services, or cycles
MARKS_SHOWN = 5

# A cell for several nodes shows the first of these phases that one of them is in.
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
    """The record and the timeline of a run, refreshed by `poll`."""

    def __init__(self, run: RunPaths, clock: Callable[[], float] = time.time) -> None:
        self._reader, self._polled_at = RunReader(run, clock), 0.0
        self._metrics, self._builder = MetricsFile(run), TimelineBuilder()
        self.run, self.timeline = self._read()

    def poll(self) -> RunRecord:
        """Read the run again if the last read was at least VIEW_POLL_S ago."""
        if time.monotonic() - self._polled_at >= VIEW_POLL_S:
            self.run, self.timeline = self._read()
        return self.run

    def _read(self) -> tuple[RunRecord, Timeline]:
        run = self._reader.read()
        self._polled_at = time.monotonic()
        self._metrics.refresh(run)
        return run, self._builder.build(run)


class BringUpView(View):
    """A few lines: nodes, services and the current wait."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.poll()
        attempt = self.timeline.attempts[-1]
        yield from cells(attempt, options.max_width, BRING_UP_ROWS, options.ascii_only)
        yield counts(attempt, options.ascii_only)
        for service in services(self.run)[:MAX_LISTED]:
            yield Text(printable(f"service {ready_line(service)}"), no_wrap=True, overflow="crop")
        yield wait_line(self.run, self.timeline)


class Top(View):
    """The full-screen view of `muster top`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.poll()
        width, height = options.max_width, options.height or console.height
        lines = [*self._lines(width, options.ascii_only)]
        lines += _driver_tail(self.run, height - len(lines) - 1)
        for line in lines[: height - 1]:
            line.truncate(width, overflow="crop" if options.ascii_only else "ellipsis")
            yield line

    def _lines(self, width: int, ascii_only: bool) -> Iterator[Text]:
        run, timeline = self.run, self.timeline
        attempt = timeline.attempts[-1]
        yield header(run, timeline)
        yield wait_line(run, timeline)
        yield Text()
        yield from cells(attempt, width, TOP_ROWS, ascii_only)
        yield counts(attempt, ascii_only)
        if (missing := diagnosis.missing(attempt)) and run.live:
            hosts = folded(node.host for node in missing[: diagnosis.MAX_FOLDED_HOSTS])
            yield Text(f"missing: {hosts}", style="yellow")
        yield from live_lines(services(run), width, ascii_only)
        for cycle in attempt.cycles[:-1][-MAX_LISTED:]:
            yield Text(printable(f"cycle {cycle.number} ended: {cycle.reason or 'no reason was recorded'}"))
        yield Text()
        yield from last_marks(timeline)


def header(run: RunRecord, timeline: Timeline) -> Text:
    """Return run id, state, duration, nodes, cycle, attempt and job."""
    attempt, state = timeline.attempts[-1], as_text(run.status.get("state"))
    colour = {"succeeded": "green", "failed": "red", "stopped": "yellow"}.get(state, "cyan")
    text = Text.assemble((printable(run.run_id), "bold"), "  ", (printable(state), f"bold {colour}"))
    parts = [duration(timeline.wall), f"{len(attempt.nodes)} nodes"]
    parts += [f"cycle {attempt.cycles[-1].number}"] if attempt.cycles[-1].number else []
    parts += [f"attempt {attempt.number}"] if attempt.number else []
    parts += [f"Slurm job {run.status['job_id']}"] if run.status.get("job_id") else []
    return text.append(printable("  " + "  ".join(parts)))


def wait_line(run: RunRecord, timeline: Timeline) -> Text:
    """Return what the run waits for; for an ended run, how it ended."""
    waits = diagnosis.waits_for(run, timeline)
    if waits is None:
        return Text(printable(as_text(run.status.get("end_reason"))))
    silence = diagnosis.silence(run)
    warning = f"; no update for {duration(silence)}: its leader may be gone" if silence else ""
    return Text(printable(f"{waits[0]}, for {duration(run.now - waits[1])}{warning}"))


def cells(attempt: AttemptTimeline, width: int, most_rows: int, ascii_only: bool) -> Iterator[Text]:
    """Yield rows of cells, one per node with the sign of its phase, or one per several nodes where rows are few."""
    in_row = max(1, (min(width, 120) - LABEL) // (BLOCK + 1)) * BLOCK
    phases = [node.phase for node in attempt.nodes]
    each = max(1, -(-len(phases) // (in_row * most_rows)))
    shown = [min(phases[at : at + each], key=WORST_FIRST.index) for at in range(0, len(phases), each)]
    for first in range(0, len(shown), in_row):
        row = Text(f"{first * each:>{LABEL - 1}} ", style="bright_black", no_wrap=True)
        for number, phase in enumerate(shown[first : first + in_row]):
            row.append(" " if number and number % BLOCK == 0 else "")
            row.append(_sign(phase, ascii_only), style=PHASE_STYLES[phase].colour)
        yield row
    if each > 1:
        yield Text(f"{'':{LABEL}}each cell is {each} nodes and shows the slowest of them", "bright_black")


def counts(attempt: AttemptTimeline, ascii_only: bool) -> Text:
    """Return the number of nodes by phase; it is also the legend of the cells."""
    text = Text(" " * LABEL)
    for phase, nodes in diagnosis.last_phases(attempt).items():
        text.append(_sign(phase, ascii_only), style=PHASE_STYLES[phase].colour).append(
            f" {PHASE_STYLES[phase].title} {len(nodes)}   "
        )
    return text


def last_marks(timeline: Timeline) -> Iterator[Text]:
    """Yield the last marks of the timeline with their times."""
    for mark in timeline.attempts[-1].marks[-MARKS_SHOWN:]:
        style = "red" if mark.kind in ("lost", "stalled") or mark.text.endswith(": failed") else ""
        yield Text(f"{duration(mark.time - timeline.start):>14}  {printable(mark.text)}", style=style)


def plain_line(run: RunRecord, timeline: Timeline) -> str:
    """Return one line about the run, for output without a terminal."""
    nodes = [
        f"{len(nodes)} {PHASE_STYLES[phase].title}"
        for phase, nodes in diagnosis.last_phases(timeline.attempts[-1]).items()
    ]
    waits = diagnosis.waits_for(run, timeline)
    summary = waits[0] if waits else as_text(run.status.get("end_reason"))
    serving = [f"{service.name} {service.ready}/{service.wanted}" for service in services(run)]
    parts = [as_text(run.status.get("state")), ", ".join(nodes) or "no nodes", ", ".join(serving), summary]
    return printable(": ".join(part for part in parts if part)).replace("\t", " ")


def _sign(phase: Phase, ascii_only: bool) -> str:
    return PHASE_STYLES[phase].letter if ascii_only else PHASE_STYLES[phase].glyph


def _driver_tail(run: RunRecord, lines: int) -> list[Text]:
    """Return the last lines of the driver's output that fit."""
    attempt = RunPaths(run.root).newest_attempt()
    tail = tail_lines(attempt.driver_log, max(0, lines - 2), 1 << 16) if attempt is not None and lines > 2 else []
    return [Text(), *(Text(f"  | {log_line(line)}", no_wrap=True) for line in tail)] if tail else []
