"""Lines of text about the services of a run, for `muster top` and the summary. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from muster.views.endpoints import MAX_REPLICAS_NAMED, endpoint_line, replica_line
from muster.views.hosts import folded
from muster.views.sanitize import printable
from muster.views.services import Load, ServiceView, total

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = ".123456789#"  # on terminals without Unicode
MAX_LISTED = 8
MAX_BAR_ROWS = 2


def ready_line(service: ServiceView) -> str:
    """Return the number of ready instances, and the states of the others.

    >>> from muster.views.services import InstanceView
    >>> restarting = InstanceView(1, "n1", "restarting", "", 1, "exited with 3", None)
    >>> ready_line(ServiceView("judge", 2, False, (restarting,)))
    'judge: 0 of 2 ready, restarting on n1, 1 restart; the driver does not wait for it'
    """
    parts = [f"{service.name}: {service.ready} of {service.wanted} ready"]
    others: dict[str, list[str]] = {}
    for instance in service.instances:
        if instance.state != "ready":
            others.setdefault(instance.state, []).append(instance.host)
    parts += [f"{state} on {folded(hosts)}" for state, hosts in others.items()]
    parts += [f"{service.restarts} restart{'s' if service.restarts > 1 else ''}"] if service.restarts else []
    return ", ".join(parts) + ("" if service.gate else "; the driver does not wait for it")


def load_line(service: ServiceView) -> str:
    """Return the total load of a sandbox, and its busiest node."""
    loads = service.loads
    all_of_it = total(load for _, load in loads)
    host, most = max(loads, key=lambda one: (one[1].share, one[1].queued))
    failed = f" ({all_of_it.failed} failed)" if all_of_it.failed else ""
    return f"load: {_busy(all_of_it)}, {all_of_it.rate:.1f}/s, {all_of_it.executed} executed{failed}" + (
        f"; busiest {host}: {_busy(most)}" if len(loads) > 1 else ""
    )


def _busy(load: Load) -> str:
    return f"{load.running} of {load.slots} busy" + (f", {load.queued} queued" if load.queued else "")


def instance_lines(service: ServiceView) -> Iterator[str]:
    """Yield a line per instance; of many, only those that are not ready, were restarted or have a problem."""
    few = len(service.instances) <= MAX_LISTED
    shown = [one for one in service.instances if few or one.state != "ready" or one.restarts or one.reason]
    for one in shown[:MAX_LISTED]:
        restarts = f", {one.restarts} restart{'s' if one.restarts > 1 else ''}" if one.restarts else ""
        reason = f": {one.reason}" if one.reason else ""
        yield f"{one.host} (index {one.node_index}): {one.state}{restarts}{f' at {one.url}' if one.url else ''}{reason}"


def live_lines(services: list[ServiceView], width: int, ascii_only: bool) -> Iterator[Text]:
    """Yield the lines of the live view: one per service and, for sandboxes, the load with a bar per node."""
    for service in services[:MAX_LISTED]:
        style = "" if service.ready >= service.wanted else "yellow"
        yield Text(printable(f"service {ready_line(service)}"), style=style, no_wrap=True)
        if service.loads:
            yield Text(printable(f"  {load_line(service)}"), no_wrap=True)
            yield from bars([load for _, load in service.loads], width, ascii_only)
        if service.endpoint is not None:
            yield Text(printable(f"  {endpoint_line(service.endpoint)}"), no_wrap=True)
    if len(services) > MAX_LISTED:
        yield Text(f"and {len(services) - MAX_LISTED} more services")


def endpoint_lines(service: ServiceView) -> Iterator[str]:
    """Yield the totals of an endpoint, and a line per replica."""
    if service.endpoint is not None:
        yield endpoint_line(service.endpoint)
        yield from map(replica_line, service.endpoint.replicas[:MAX_REPLICAS_NAMED])


def bars(loads: list[Load], width: int, ascii_only: bool) -> Iterator[Text]:
    """Yield rows of bars with the share of busy slots per node; of many nodes, one bar for the busiest of several."""
    in_row = max(1, min(width, 120) - 4)
    each = max(1, -(-len(loads) // (in_row * MAX_BAR_ROWS)))
    signs = LETTERS if ascii_only else BLOCKS
    shares = [max(load.share for load in loads[at : at + each]) for at in range(0, len(loads), each)]
    cells = "".join(signs[round(share * (len(signs) - 1))] for share in shares)
    for at in range(0, len(cells), in_row):
        yield Text(f"    {cells[at : at + in_row]}", style="cyan", no_wrap=True)
