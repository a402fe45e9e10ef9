"""A coordinator that is none of the nodes: it closes rounds without taking part in them, on any host they can reach."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace

from muster.lifecycle.events import RunOutcome
from muster.torch.coordinator import Coordinator, OpenStore
from muster.torch.endpoint import take_port
from muster.torch.session import LEAVE_S
from muster.torch.settings import RendezvousSettings


def coordinate(settings: RendezvousSettings, open_store: OpenStore, announce: Callable[[int], None]) -> RunOutcome:
    """Serve one job to its end at the settings' endpoint; `announce` hears the port. OSError where it is taken."""
    return asyncio.run(_serve(settings, open_store, announce))


async def _serve(settings: RendezvousSettings, open_store: OpenStore, announce: Callable[[int], None]) -> RunOutcome:
    listener = take_port(settings.host, settings.port)
    if listener is None:
        raise OSError(f"port {settings.port} is taken here: by another coordinator of the job?")
    awaited = tuple(host for host in settings.plan.hosts if host != settings.node)
    plan = replace(settings.plan, hosts=awaited)
    coordinator = Coordinator(plan, settings.token, home=secrets.token_hex(8), open_store=open_store)
    await coordinator.start(listener)
    announce(listener.getsockname()[1])
    outcome = await coordinator.ended()
    await coordinator.close(LEAVE_S)
    return outcome
