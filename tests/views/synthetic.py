"""Run directories as large and as odd as a test wants them, written without running anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from muster.rundir import RunPaths, write_json

START = 1_760_000_000.0
COMMAND = ["python", "train.py", "--config", "big.yaml"]


class SyntheticRun:
    """A run whose events a test, or `brings_up` and `loses`, puts together."""

    def __init__(
        self, root: Path, nodes: int, spares: int = 0, hosts: list[str] | None = None, services: tuple[str, ...] = ()
    ) -> None:
        self.paths = RunPaths(str(root))
        self.attempt = self.paths.attempt(0)
        self.nodes, self.spares = nodes, spares
        self.hosts = hosts or [f"gpu{node_index:04d}" for node_index in range(nodes + spares)]
        self.cycle, self.now = 0, START + 31.0
        self.states = dict.fromkeys(range(nodes + spares), "expected")
        self.roles = dict.fromkeys(range(nodes + spares), "waiting" if spares else "active")
        self.rank = {node_index: node_index for node_index in range(nodes)}
        self.services: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in services}
        self.cycles: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.error: dict[str, Any] | None = None
        os.makedirs(os.path.join(self.attempt.root, "logs"))
        group = {"name": "main", "nodes": nodes, "cpus_per_node": 96, "gpus_per_node": 8, "mem": "1000G"}
        job = {"nodes": nodes, "spares": spares, "command": COMMAND, "name": "train", "ray": True, "groups": []}
        asked = {name: {"kind": "command", "scope": "all", "gate": name != "tensorboard"} for name in services}
        job |= {**{k: v for k, v in group.items() if k not in job}, "stop_grace": 30.0, "services": asked}
        write_json(self.paths.job, job)
        submission = {"asked": START, "time": START + 1.0, "backend": "slurm", "kind": "sbatch", "job_id": "4711"}
        write_json(self.paths.submission, {**submission, "run": self.paths.run_id, "pid": None, "host": "login1"})
        Path(self.attempt.hosts).write_bytes(("\n".join(self.hosts) + "\n").encode("utf-8", "surrogatepass"))
        Path(self.attempt.driver_log).write_text("")

    def tell(self, event: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        common = {"time": self.now, "event": event, "attempt": 0, "cycle": self.cycle}
        self.lines.append(json.dumps({**common, **fields}))

    def node(self, node_index: int, state: str, after: float = 0.0, role: str | None = None) -> None:
        self.states[node_index], self.roles[node_index] = state, role or self.roles[node_index]
        rank = self.rank.get(node_index) if self.roles[node_index] == "active" else None
        fields = {
            "rank": node_index,
            "host": self.hosts[node_index],
            "role": self.roles[node_index],
            "logical_rank": rank,
        }
        self.tell("node", after, **fields, state=state)

    def service(self, name: str, node_index: int, state: str = "ready", after: float = 0.0, **more: Any) -> None:
        """What an instance does; a sandbox has a load in the status."""
        host = self.hosts[node_index]
        told = {
            "rank": node_index,
            "host": host,
            "state": state,
            "url": f"http://{host}:7001",
            "restarts": 0,
            "reason": "",
        }
        told |= {key: value for key, value in more.items() if key != "load"}
        self.tell("service", after, service=name, **told)
        self.services[name][node_index] = {**told, **({"load": more["load"]} if "load" in more else {})}

    def brings_up(self, slow: int | None = None) -> None:
        """Everybody arrives and starts Ray; one node may be slow to. Then the driver starts."""
        here = [node_index for node_index, role in self.roles.items() if role != "excluded"]
        self.cycles.append({"cycle": self.cycle, "start": self.now, "end": None, "reason": None})
        self.tell("run", state="gathering")
        if self.cycle:
            for node_index in here:
                self.node(node_index, "stopping", role="waiting" if self.spares else "active")
        for number, node_index in enumerate(here):
            self.node(node_index, "arrived", 2.0 if number == 0 else 3.0 / len(here))
            if number == 0 and self.cycle == 0:  # the first head does not wait for the others
                self.node(node_index, "starting", role="active")
        active, spare = here[: self.nodes], here[self.nodes :]
        self.rank = {node_index: number for number, node_index in enumerate(active)}
        for node_index in here:
            self.node(node_index, self.states[node_index], role="active" if node_index in active else "spare")
        self.tell("run", state="starting")
        if self.cycle:
            self.node(active[0], "starting")
        self.tell("note", 4.0, rank=active[0], host=self.hosts[active[0]], text="Ray's head is up")
        for node_index in active[1:]:
            self.node(node_index, "starting")
        self.node(active[0], "ready")
        for node_index in [node_index for node_index in active[1:] if node_index != slow] + [
            node_index for node_index in active[1:] if node_index == slow
        ]:
            self.node(node_index, "ready", 5.0 if node_index == slow else 2.0 / len(active))
        assert len(spare) <= self.spares
        for name in self.services:
            for node_index in [*active[1:], active[0]]:
                self.service(name, node_index, after=0.5 / len(active))
        self.tell("run", state="running")
        self.tell("driver_start", 0.01, command=COMMAND)

    def loses(self, node_index: int, after: float = 60.0, reason: str = "its connection ended") -> None:
        """A node is lost while the driver runs, and the next cycle begins."""
        host, tail = self.hosts[node_index], ["CUDA error: an illegal memory access was encountered", "Aborted"]
        error = {
            "rank": node_index,
            "host": host,
            "phase": "running",
            "reason": f"the agent of {host} is gone: {reason}",
        }
        self.tell("failure", after, **error, log_tail=tail)
        self.node(node_index, "lost", role="excluded")
        self.tell("run", state="restarting", reason=error["reason"])
        self.tell("driver_end", 3.0, exit_code=143)
        self.cycles[-1].update(end=self.now, reason=error["reason"])
        self.cycle += 1

    def ends(self, code: int = 0, after: float = 90.0) -> None:
        self.tell("driver_end", after, exit_code=code)
        self.tell("run", state="finishing")
        here = [node_index for node_index, state in self.states.items() if state not in ("lost", "gone", "expected")]
        for node_index in here:
            self.node(node_index, "stopping")
        for node_index in here:
            self.node(node_index, "gone", 1.0 / len(here))
        state = "succeeded" if code == 0 else "failed"
        self.tell("run", state=state)
        reason = f"the driver exited with {code}"
        self.cycles[-1].update(end=self.now, reason=reason)
        self.tell("end", state=state, exit_code=code, reason=reason)
        self.write(state, end_reason=reason)
        write_json(self.attempt.outcome, {"exit_code": code, "state": state, "end_reason": reason})

    def write(self, state: str, **fields: Any) -> None:
        """What the leader has published by now."""
        Path(self.attempt.events()).write_text("".join(f"{line}\n" for line in self.lines))
        nodes = [
            {"rank": r, "host": h, "role": self.roles[r], "logical_rank": None, "state": self.states[r]}
            for r, h in enumerate(self.hosts)
        ]
        told = [json.loads(line) for line in self.lines if '"driver_' in line or '"end"' in line]
        when = {event["event"]: event["time"] for event in told}
        timings = {"job_start": START + 30.0, "lead_ready": START + 31.0, "ended": when.get("end")}
        timings |= {name: when[name] for name in ("driver_start", "driver_end") if name in when}
        status = {
            "run": self.paths.run_id,
            "job_id": "4711",
            "backend": "slurm",
            "attempt": 0,
            "cycle": self.cycle,
            "lead": 0,
            "cycles": self.cycles,
            "state": state,
            "end_reason": None,
            "nodes": nodes,
            "guests": [],
            "driver": {"state": "waiting", "exit_code": None},
            "ray": None,
            "timings": timings,
            "error": self.error,
            "updated": self.now,
            "services": self._serving(state),
        }
        write_json(self.attempt.status(), {**status, **fields})

    def _serving(self, state: str) -> dict[str, Any]:
        """As a leader publishes it while nodes serve; it forgets instances when their nodes are told to stop."""
        over = state in ("succeeded", "failed")
        return {
            name: {
                "wanted": self.nodes,
                "ready": sum(one["state"] == "ready" for one in instances.values()),
                "gate": name != "tensorboard",
                "instances": [instances[node_index] for node_index in sorted(instances)],
            }
            for name, instances in ((name, {} if over else known) for name, known in self.services.items())
        }


def load(running: int, slots: int = 8, **more: Any) -> dict[str, Any]:
    """What a sandbox says of itself."""
    told = {"host": "x", "slots": slots, "running": running, "queued": 0, "workers": slots, "sessions": 1}
    told |= {"workspaces": 0, "uptime_s": 9.5, "executed": 100, "failed": 2, "rate": 2.5 * running, "busiest": []}
    return {**told, **more}


def large_run(root: Path, nodes: int = 1000, services: tuple[str, ...] = ()) -> SyntheticRun:
    """Three cycles: one node is slow, two are lost, spares take their places."""
    run = SyntheticRun(root, nodes - 4, spares=4, services=services)
    run.brings_up(slow=min(412, nodes - 5))
    run.loses(min(17, nodes - 5))
    run.brings_up()
    run.loses(min(871, nodes - 6), reason="no word for 12 s")
    run.brings_up(slow=1)
    run.ends()
    return run


HOSTILE = (
    "<img src=x onerror=boom()>",
    "</script><script>boom()</script>",
    "\x1b[2J\x1b[31mred\x1b[0m",
    "turned\u202eround",
    "a\r\nb\tc",
    "'\"&amp;{{7*7}}",
    "null\0byte",
    "\x9b31m",
    "\ud800",
)


def hostile_run(root: Path) -> SyntheticRun:
    """Every text of it tries to be more than text; one node is lost, one driver fails."""
    run = SyntheticRun(root, len(HOSTILE), hosts=[f"{text}" for text in HOSTILE])
    job = {"nodes": len(HOSTILE), "command": ["sh", "-c", *HOSTILE], "name": HOSTILE[0], HOSTILE[1]: HOSTILE[2]}
    write_json(run.paths.job, job)
    run.brings_up()
    run.loses(2, reason=HOSTILE[0])
    run.lines[-4] = json.dumps({**json.loads(run.lines[-4]), "reason": " ".join(HOSTILE), "log_tail": [*HOSTILE]})
    run.brings_up()
    run.error = {"rank": 1, "host": HOSTILE[1], "phase": HOSTILE[0], "reason": HOSTILE[2], "log_tail": [*HOSTILE]}
    run.tell("note", rank=1, host=HOSTILE[1], text=HOSTILE[0])
    for node_index, text in enumerate(HOSTILE):
        run.services[text] = {}
        run.service(text, node_index, text, url=f"javascript:{text}", reason=text, restarts=1)
    Path(run.attempt.node_log(1)).write_bytes(" ".join(HOSTILE).encode("utf-8", "surrogatepass") + b"\xff\xfe\n")
    Path(run.attempt.driver_log).write_bytes("\n".join(HOSTILE).encode("utf-8", "surrogatepass") + b"\xff\xfe\n")
    run.ends(code=1)
    return run
