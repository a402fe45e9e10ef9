"""What every agent does for its own node: join the lead, carry out its orders, report, leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from muster.agent import stacks
from muster.agent.addresses import NoAddress, own_address
from muster.agent.channel import Channel, ChannelError, connect
from muster.agent.environment import given_variables, job_environment
from muster.agent.groups import VARIABLE as GROUP_VARIABLE
from muster.agent.job import Identity, node_tail
from muster.agent.log import say
from muster.agent.procs import Order as ProcsOrder
from muster.agent.procs import Procs
from muster.agent.ray_node import Order, RayNode, RayPaths, settings
from muster.agent.ray_node.labels import NodeFacts
from muster.agent.ray_node.resources import Mismatch
from muster.agent.ray_node.settings import RayOptions
from muster.agent.turns import Ending, leaderless
from muster.board import read_json, write_json
from muster.process import SpawnError
from muster.rendezvous.protocol import INFRASTRUCTURE_FAILED

FIRST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
JOIN_S = 900.0  # no lead for this long: nobody is going to come


def _process() -> dict[str, Any]:
    """Who this agent is on its host: a shell on this node takes its environment, and its interpreter, from it."""
    return {"pid": os.getpid(), "python": sys.executable, "time": time.time()}


class NodeAgent:
    """The node's half of the control channel. `run` returns the agent's exit code."""

    def __init__(self, identity: Identity, token: bytes) -> None:
        self._identity = identity
        self._token = token
        self._ray: RayNode | None = None
        self._procs: Procs | None = None  # this node's part in a gang
        self._gone = False
        self._cycle = 0
        self._channel: Channel
        self._address: str  # what other nodes find this one at

    async def run(self) -> int:
        channel = await self._join()
        if channel is None:
            return 0  # the run was over before this node came
        self._channel = channel
        beats = asyncio.create_task(channel.beat())
        try:
            while (message := await channel.receive()) is not None:
                if message["type"] == "bye":
                    return 0
                await self._obey(message)
            return 0 if self._gone else INFRASTRUCTURE_FAILED
        finally:
            beats.cancel()
            await self._clean(leaderless(self._identity.rank))
            channel.close()

    def report_signal(self, signum: int) -> None:
        """Slurm signals all tasks in one instant; only the lead acts on it, so that the driver keeps its cluster."""
        if hasattr(self, "_channel"):
            self._channel.send("signal", signal=signum)
        else:
            os._exit(128 + signum)

    async def _join(self) -> Channel | None:
        """Wait for the lead's published address, then connect to whichever of them answers; None if all is over."""
        identity = self._identity
        wait, greeting = (
            FIRST_LOOK_S,
            {"rank": identity.rank, "host": identity.host, "attempt": identity.attempt.number},
        )
        write_json(identity.attempt.node_record(identity.rank), {**greeting, **_process()})
        deadline = time.monotonic() + JOIN_S
        while True:
            # Listing, not opening: a network filesystem may remember for half a minute that a file was not there.
            names = os.listdir(identity.attempt.root)
            lead = read_json(identity.attempt.lead()) if os.path.basename(identity.attempt.lead()) in names else None
            if lead is not None:
                try:
                    return await connect(lead["addresses"], lead["port"], self._token, greeting)
                except ChannelError as error:
                    say(f"{error}; trying again")
            if os.path.basename(identity.attempt.outcome) in names:
                return None
            if time.monotonic() > deadline:
                raise ChannelError(f"no lead for {JOIN_S:g} s")
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_LOOK_S)

    async def _obey(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "welcome":  # again for each cycle, once the node is clean for it
            self._cycle, self._gone = message["cycle"], False
            if self._has_address(message["interface"]) and message["ray"] is not None:
                await self._warm(RayOptions(**message["ray"]), message["cycle"])
        elif kind == "start_ray" and self._ray is not None:
            self._ray.start(Order(message["address"] or self._address, message["head"], message["logical"]))
        elif kind == "start_procs":
            self._procs = Procs(self._identity, ProcsOrder.from_message(message), self._channel.send)
        elif kind in ("signal_procs", "end_procs") and self._procs is not None:
            self._procs.obey(message)
        elif kind == "stacks":
            self._dumping = asyncio.create_task(self._dump_stacks())
        elif kind == "stop":
            await self._clean(Ending(message["failed"], message["after"], message["seconds"]))
            self._gone = True
            self._channel.send("gone", cycle=message["cycle"])

    def _has_address(self, interface: str | None) -> bool:
        """Decide what this node calls itself; without an address as asked for, it fails by name."""
        proven = self._channel.local_address
        try:
            self._address = proven if self._identity.local else own_address(interface, proven)
        except (NoAddress, OSError) as error:
            self._report_failure("network", str(error))
            return False
        return True

    async def _warm(self, options: RayOptions, cycle: int) -> None:
        """Begin with Ray at once: importing it is most of the way, and needs nobody else."""
        identity, channel = self._identity, self._channel
        try:
            temp = settings.temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.rank)
            env = job_environment(os.environ, given_variables(identity), identity, cycle)
            if options.group is not None:
                env[GROUP_VARIABLE] = options.group
            logs = identity.attempt.ray_logs_dir(cycle)
            paths = RayPaths(temp, os.path.join(logs, settings.file_name(identity.host)))
            topology = os.environ.get("SLURM_TOPOLOGY_ADDR", "")
            facts = NodeFacts(identity.rank, identity.host, topology, group=options.group, number=identity.rank)
            self._ray = RayNode(options, facts, paths, env, self._token)
            self._ray.on_head = lambda address, port: channel.send(
                "head_address", address=address, dashboard=port, cycle=cycle
            )
            self._ray.on_alive = lambda ranks: channel.send("alive", ranks=ranks, cycle=cycle)
            self._ray.on_started = lambda: channel.send("started", cycle=cycle)
            self._ray.on_note = lambda text: channel.send("note", text=text)
            self._ray.on_failure = lambda reason: self._report_failure("ray", reason)
            await self._ray.warm()
        except Mismatch as error:
            self._report_failure("resources", f"{identity.host}: {error}")
        except (OSError, ValueError, SpawnError) as error:
            self._report_failure("ray", str(error))

    async def _dump_stacks(self) -> None:
        """Beside everything else: a stop may come meanwhile."""
        identity, loop = self._identity, asyncio.get_running_loop()
        env = job_environment(os.environ, given_variables(identity), identity, self._cycle)
        try:
            seen = await loop.run_in_executor(None, stacks.dump, identity.attempt.stacks(identity.rank), env)
        except OSError as error:
            say(f"stacks could not be written: {error}")
            seen = False
        self._channel.send("stacks", python=seen)

    def _report_failure(self, phase: str, reason: str) -> None:
        say(f"{reason}")
        tail = node_tail(self._identity.attempt, self._identity.rank)
        self._channel.send("failed", phase=phase, reason=reason, tail=tail, cycle=self._cycle)

    async def _clean(self, ending: Ending) -> None:
        """End and remove everything of the run on this node; safe to call again."""
        if self._procs is not None:
            procs, self._procs = self._procs, None
            await procs.close()
        if self._ray is not None:
            ray, self._ray = self._ray, None
            await ray.stop(ending)
