"""Cost of leading a run as it grows: a real leader in its own process, and agents without work over loopback.

The job is a gang without Ray with two services on every node: `judge`, whose endpoints every process is given, and
`box`, whose instances are sent the endpoints of the others, as sandboxes are. Half of the nodes are spares. Node 0 is a
real agent that leads; all others are stubs in this process, so times include their work and CPU times do not.

    start    from the first connection until every active node was told to start its processes
    idle     heartbeats
    losses   a tenth of the nodes is lost at once; until the processes of the next cycle are started
    end      from the end of all processes until the last agent is dismissed

The loop's lag is the time from a connection to the leader's listener until its first line, probed from a process that
does nothing else. `max_lag_s` is without the time for which the leader waited for a CPU meanwhile, which depends on
what else runs on the machine; `max_wall_lag_s` includes it. For the same reason `own_cpu_s` is the CPU time of a phase
without what the probes and the heartbeats cost in that time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from local_run import private_home
from report import Goal, goals_table, machine, save, table
from stub_agents import PEERS, StubAgents

from muster.api import prepare
from muster.launch.local_launcher import host_name
from muster.launch.run_writer import write_run
from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.spec import JobSpec

SIZES = (250, 500, 1000, 2000)
LOST_NODES = 0.1  # of all: at the end as many are left in proportion, whatever the size
IDLE_S = 10.0
SETTLE_S = 1.0  # after a phase
DEADLINE_S = 300.0
PROBE_INTERVAL_S = 0.02
GOAL_LAG_S, GOAL_EXPONENT = 0.5, 1.1
# A service that reports the members' version which the benchmark writes into a file.
_SERVICE = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try: version = int(open(sys.argv[2]).read())
        except (OSError, ValueError): version = 0
        body = json.dumps({"version": version}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.HTTPServer((sys.argv[3], int(sys.argv[1])), Handler).serve_forever()
"""


class LoopProbe:
    """Measures the delay of the leader's loop from a separate process."""

    def __init__(self, port: int, pid: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_probe, args=(theirs, port, pid), daemon=True)
        self._process.start()
        theirs.close()

    def lags(self, probing: bool = True) -> dict[str, float]:
        """Return the largest lags since the last call, in seconds, and continue or pause the probing."""
        self._pipe.send(probing)
        lag, wall = self._pipe.recv()
        return {"max_lag_s": round(lag, 3), "max_wall_lag_s": round(wall, 3)}

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _probe(pipe: Connection, port: int, pid: int) -> None:
    lag = wall_lag = 0.0
    probing = True
    while True:
        start, waited = time.monotonic(), _cpu_wait_s(pid)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60.0) as connection:
                connection.recv(1)
            wall = time.monotonic() - start
            wall_lag, lag = max(wall_lag, wall), max(lag, wall - (_cpu_wait_s(pid) - waited))
        except OSError:  # the leader has ended
            pass
        if not probing or pipe.poll():
            probing = pipe.recv()
            pipe.send((lag, wall_lag))
            lag = wall_lag = 0.0
        time.sleep(PROBE_INTERVAL_S)


def _cpu_wait_s(pid: int) -> float:
    """Return for how long the main thread was runnable without a CPU."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def main() -> int:
    options, load = _options(), round(os.getloadavg()[0], 1)
    leave_on_signals()
    with private_home() as directory:
        try:
            runs = [asyncio.run(measure(directory, nodes)) for nodes in options.nodes]
        except (RuntimeError, asyncio.TimeoutError) as error:
            print(f"bench: {error!r}", file=sys.stderr)
            return 1
    results: dict[str, Any] = {"machine": machine(), "load": load, "runs": runs, "exponents": exponents(runs)}
    wanted = goals(results)
    results["goals"] = [goal.to_json() for goal in wanted]
    path = save(options.result, results)
    print(json.dumps(results, indent=2) if options.json_only else _page(results, wanted, path))
    return 0


async def measure(directory: Path, nodes: int) -> dict[str, Any]:
    """Run one job with this many nodes, and return its figures by phase."""
    fifo, members = directory / f"hold-{nodes}", directory / f"members-{nodes}"
    os.mkfifo(fifo)
    prepared = prepare(_job(directory, nodes, fifo, members))
    write_run(prepared)
    attempt = prepared.run.attempt(0)
    _prepare_attempt(attempt, nodes)
    agents = StubAgents(nodes, host_name, Path(prepared.run.token).read_bytes().strip())
    agents.on_members = lambda version: _replace(members, str(version))
    holder = os.open(fifo, os.O_RDWR)  # so that opening it does not block the processes
    leader, probe = _start_leader(prepared.run, attempt), None
    try:
        port = await _leader_port(attempt, leader)
        agent_pid = read_record(attempt.node_record(0))["pid"]  # the process started here is its guardian
        probe = LoopProbe(port, agent_pid)
        figures = await LedRun(nodes, agents, probe, agent_pid).phases(port, lambda: os.write(holder, b"\n"))
        code = await asyncio.to_thread(leader.wait, DEADLINE_S)
        if code:
            raise RuntimeError(f"the leader has exited with {code}")
        return {"nodes": nodes, **figures, "status_kb": round(os.path.getsize(attempt.status(0)) / 1000)}
    except BaseException:
        print(Path(attempt.node_log(0)).read_text(errors="replace")[-3000:], file=sys.stderr)
        raise
    finally:
        if probe is not None:
            probe.close()
        if leader.poll() is None:
            leader.terminate()
        await agents.close()
        leader.wait(DEADLINE_S)
        os.close(holder)


def _job(directory: Path, nodes: int, fifo: Path, members: Path) -> JobSpec:
    service = [sys.executable, "-c", _SERVICE, "{http}", str(members), "127.0.0.1"]
    definition = {"command": service, "ports": {"http": "auto"}}
    return JobSpec(
        command=["bash", "-c", f"read -r _ <{shlex.quote(str(fifo))}"],
        backend="local",
        nodes=nodes // 2,
        spares=nodes - nodes // 2,
        procs_per_node=1,
        ray=False,
        on_node_loss="restart",
        max_restarts=3,
        services={"judge": definition, PEERS: definition},
        python=sys.executable,
        runs_dir=str(directory / "runs"),
    )


def _start_leader(run: RunPaths, attempt: AttemptPaths) -> subprocess.Popen[bytes]:
    """Start the agent of node 0 as its prelude does."""
    variables = {"MUSTER_RANK": "0", "MUSTER_HOST": host_name(0), "MUSTER_ATTEMPT": "0", "MUSTER_BACKEND": "local"}
    env = {**os.environ, **variables, "MUSTER_JOB_START": str(time.time())}
    argv = [sys.executable, "-I", "-S", run.agent, run.root]
    with open(attempt.node_log(0), "wb") as log:
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@dataclass(frozen=True)
class LedRun:
    """A run whose leader is measured, phase by phase."""

    nodes: int
    agents: StubAgents
    probe: LoopProbe
    leader_pid: int

    async def phases(self, port: int, release: Callable[[], object]) -> dict[str, Any]:
        """Return the figures of all phases. `release` lets the process on node 0 end."""
        agents, active, losses = self.agents, self.nodes // 2, round(self.nodes * LOST_NODES)
        found: dict[str, Any] = {}
        with self._phase(found, "start"):
            await agents.join(port)
            await agents.wait_for(lambda: agents.running(0) >= active - 1, DEADLINE_S)
        await asyncio.sleep(SETTLE_S)
        with self._phase(found, "idle", probing=False):  # the probes would be most of the leader's work
            await asyncio.sleep(IDLE_S)
        with self._phase(found, "probed"):
            await asyncio.sleep(IDLE_S / 2)
        probed = found.pop("probed")
        found["idle"].update(max_lag_s=probed["max_lag_s"], max_wall_lag_s=probed["max_wall_lag_s"])
        idle_cpu = probed["lead_cpu_s"] / probed["seconds"]
        with self._phase(found, "losses"):
            step = (self.nodes - 1) / losses
            agents.lose([1 + int(number * step) for number in range(losses)])
            await agents.wait_for(lambda: agents.running(1) >= active - 1, DEADLINE_S)
        found["losses"]["lost"] = losses
        await asyncio.sleep(SETTLE_S)
        found["memory_mb"] = _peak_mb(self.leader_pid)
        with self._phase(found, "end"):
            release()
            agents.end_processes()
            await agents.wait_for(lambda: len(agents.dismissed) >= self.nodes - 1 - losses, DEADLINE_S)
        for name in ("start", "losses", "end"):
            phase = found[name]
            phase["own_cpu_s"] = round(max(phase["lead_cpu_s"] - idle_cpu * phase["seconds"], 0.0), 3)
        found["idle"]["own_cpu_s"] = found["idle"]["lead_cpu_s"]
        return found

    @contextmanager
    def _phase(self, found: dict[str, Any], name: str, probing: bool = True) -> Iterator[None]:
        self.probe.lags(probing)
        began, cpu, received = time.monotonic(), _cpu_s(self.leader_pid), self.agents.bytes_received()
        yield
        found[name] = {
            "seconds": round(time.monotonic() - began, 3),
            "lead_cpu_s": round(_cpu_s(self.leader_pid) - cpu, 3),
            "megabytes": round((self.agents.bytes_received() - received) / 1e6, 3),
            **self.probe.lags(),
        }


def _prepare_attempt(attempt: AttemptPaths, nodes: int) -> None:
    """Write what the job script writes before it starts the tasks."""
    logs = Path(attempt.node_log(0)).parent
    logs.mkdir(parents=True)
    Path(attempt.node_record(0)).parent.mkdir()
    for path in (attempt.steps_log, attempt.phases_log, attempt.driver_log):
        Path(path).touch()
    Path(attempt.hosts).write_text("".join(f"{host_name(node_index)}\n" for node_index in range(nodes)))


async def _leader_port(attempt: AttemptPaths, leader: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + DEADLINE_S
    while not (record := read_record(attempt.leader(0))):
        if leader.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the leader has not started")
        await asyncio.sleep(0.02)
    return int(record["port"])


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of the process. The clock ticks of /proc/PID/stat are too coarse."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except FileNotFoundError:
        return 0.0


def _peak_mb(pid: int) -> float:
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return round(int(fields["VmHWM"].split()[0]) / 1024, 1)
    except (FileNotFoundError, KeyError):
        return 0.0


def exponents(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return how the figures grow from the smallest to the largest run: as its size to this power."""
    first, last = runs[0], runs[-1]
    if last["nodes"] <= first["nodes"]:
        return {}
    growth = math.log(last["nodes"] / first["nodes"])
    found = {}
    for phase in ("start", "idle", "end"):
        for figure in ("seconds", "own_cpu_s", "megabytes"):
            if phase == "idle" and figure == "seconds":
                continue
            low, high = (max(one[phase][figure], 0.001) for one in (first, last))
            found[f"{phase}_{figure}"] = round(math.log(high / low) / growth, 2)
    found["memory"] = round(math.log(last["memory_mb"] / first["memory_mb"]) / growth, 2)
    return found


def goals(results: dict[str, Any]) -> list[Goal]:
    last, found = results["runs"][-1], results["exponents"]
    wanted = [
        Goal(
            f"lag of the leader's loop, {phase}, {last['nodes']} nodes",
            last[phase]["max_lag_s"],
            GOAL_LAG_S,
            " s",
            True,
        )
        for phase in ("start", "idle", "losses", "end")
    ]
    for name, what in (
        ("start_seconds", "time until all are ready"),
        ("start_own_cpu_s", "leader's CPU until all are ready"),
        ("idle_own_cpu_s", "leader's CPU when idle"),
        ("end_own_cpu_s", "leader's CPU at the end"),
        ("start_megabytes", "bytes sent until all are ready"),
        ("idle_megabytes", "bytes sent when idle"),
        ("end_megabytes", "bytes sent at the end"),
        ("memory", "leader's memory"),
    ):
        if name in found:
            wanted.append(Goal(f"growth exponent, {what}", found[name], GOAL_EXPONENT))
    return wanted


def _page(results: dict[str, Any], wanted: list[Goal], path: Path) -> str:
    columns = ("seconds", "lead_cpu_s", "own_cpu_s", "megabytes", "max_lag_s", "max_wall_lag_s")
    rows = [["nodes, phase", *columns]]
    for run in results["runs"]:
        for phase in ("start", "idle", "losses", "end"):
            rows.append([f"{run['nodes']} {phase}", *(f"{run[phase][column]:g}" for column in columns)])
    sizes = [["nodes", "memory_mb", "status_kb"]]
    sizes += [[str(run["nodes"]), f"{run['memory_mb']:g}", f"{run['status_kb']:g}"] for run in results["runs"]]
    growth = [["growth exponent", ""], *([name, f"{value:g}"] for name, value in results["exponents"].items())]
    return "\n\n".join(
        [_lag_line(results), goals_table(wanted), table(rows), table(sizes), table(growth), f"written to {path}"]
    )


def _lag_line(results: dict[str, Any]) -> str:
    """Say which lag counts: on an idle machine the one by the clock, else the one without the wait for a CPU."""
    last, phases = results["runs"][-1], ("start", "idle", "losses", "end")
    net, wall = (max(last[phase][name] for phase in phases) for name in ("max_lag_s", "max_wall_lag_s"))
    return (
        f"{last['nodes']} nodes: the leader's loop was late by at most {wall:.3f} s by the clock, and by {net:.3f} s "
        f"without the time for which it waited for a CPU. Load of the machine before: {results['load']:g}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of leading a run as it grows.")
    parser.add_argument(
        "--nodes",
        type=int,
        nargs="+",
        default=SIZES,
        metavar="N",
        help="sizes in ascending order (default: %(default)s)",
    )
    parser.add_argument("--result", default="leader_scale.json", metavar="FILE", help="name of the result file")
    parser.add_argument("--json-only", action="store_true", help="print the results as JSON and nothing else")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
