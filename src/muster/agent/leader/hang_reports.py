"""Hangs of processes at the leader: name the processes that lag, write all stacks, and follow --on-hang.

state       leaves on                                                                        to
watching    a node reports a process that is in a section for too long                       dumping
dumping     every node has reported its processes and written their stacks                   watching, or the cycle ends
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from muster.agent.control.messages import DumpStacks, SectionReport
from muster.agent.health.section_limits import ProcessSection
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.inbox import MachineEvent
from muster.lifecycle.end_reasons import listed
from muster.lifecycle.events import DriverStalled
from muster.lifecycle.states import RunState

REPORT, RESTART = "report", "restart"  # values of --on-hang, besides fail
STALL = "stall"
STACKS_TIMEOUT_S = 45.0  # for all nodes to write their stacks
MAX_PROCESSES_SHOWN = 16

HostProcess = tuple[int, ProcessSection]  # with its node index


class HangReports:
    """Handles one hang at a time: a collective operation hangs on all nodes."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        self._reports: dict[int, SectionReport] = {}  # the last one of each node
        self._dumping = False

    def on_report(self, node_index: int, report: SectionReport) -> None:
        """Handle a node's report."""
        machine = self._context.machine
        if report.cycle != machine.cycle or machine.state is not RunState.RUNNING:
            return
        self._reports[node_index] = report
        if report.overdue and not self._dumping:
            self._dumping = True
            self._context.inbox.spawn(self._handle(report.cycle))

    async def _handle(self, cycle: int) -> None:
        """Ask all nodes for stacks, which they write after they have reported their processes."""
        context = self._context
        try:
            await context.connections.ask(DumpStacks(), STACKS_TIMEOUT_S)
        finally:
            self._dumping = False
        current = [
            (node_index, process)
            for node_index, report in sorted(self._reports.items())
            for process in report.processes
            if report.cycle == cycle
        ]
        self._reports.clear()
        machine = context.machine
        if (
            machine.cycle != cycle
            or machine.state is not RunState.RUNNING
            or not any(one.overdue for _, one in current)
        ):
            return  # it has ended meanwhile, or was only slow
        reason = self._publish(current)
        action = self._action(given=any(process.overdue and process.given for _, process in current))
        if action != REPORT:
            restart = None if action == STALL else action == RESTART
            context.inbox.post(MachineEvent(DriverStalled(reason, cycle, restart)))

    def _action(self, given: bool) -> str:
        """Return the reaction: without --on-hang, only a limit that the program has given ends a cycle, as a stall."""
        job = self._context.job
        return job.on_hang or (STALL if given and job.stall_timeout is not None else REPORT)

    def _publish(self, current: list[HostProcess]) -> str:
        """Publish the processes, those that lag first; return the reason."""
        hosts = [node.host for node in self._context.machine.nodes]
        lagging = lagging_processes(current)
        named = listed([_text(hosts[node_index], process) for node_index, process in lagging], 4)
        reason = f"the run hangs: {named}; see logs/stacks-*.txt"
        ordered = [*lagging, *(one for one in current if one not in lagging)][:MAX_PROCESSES_SHOWN]
        shown: list[dict[str, Any]] = [
            {"node": node_index, "host": hosts[node_index], **asdict(process), "lags": (node_index, process) in lagging}
            for node_index, process in ordered
        ]
        self._context.publisher.phase(reason)
        self._context.publisher.event("hang", reason=reason, processes=shown)
        return reason


def lagging_processes(current: list[HostProcess]) -> list[HostProcess]:
    """Return the processes on which the others wait: of those at the lowest step, the overdue ones if there are any.

    In a collective operation all processes are overdue, and the ones that have not reached it are behind. Without
    steps, those lag that have been in their section for longest, within a tenth.
    """
    steps = [process.step for _, process in current if process.step is not None]
    if steps and min(steps) < max(steps):
        behind = [one for one in current if one[1].step == min(steps)]
        return [one for one in behind if one[1].overdue] or behind
    overdue = [one for one in current if one[1].overdue]
    longest = max(process.seconds for _, process in overdue)
    return [one for one in overdue if one[1].seconds >= 0.9 * longest]


def _text(host: str, process: ProcessSection) -> str:
    name = f"rank {process.rank}" if process.rank is not None else f"process {process.pid}"
    step = "" if process.step is None else f", step {process.step}"
    limit = "" if process.limit is None else f" (limit {process.limit:.1f} s)"
    what = "in no section" if process.section is None else f"in {process.section!r} for {process.seconds:.1f} s{limit}"
    return f"{name} on {host} {what}{step}"
