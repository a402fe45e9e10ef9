"""Several sandboxes on this machine, each on a loopback address of its own, as the nodes of a cluster are."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.running import wait_for
from tests.sandbox.serving import Served

from muster.process.proctree import read_processes
from muster.sandbox.gateway.nginx_config import find_nginx

TOKEN = "a-token.of~the/run=="
KINDS = ("nginx", "python")


class Cluster:
    """`kinds`: what each node's endpoint is balanced by."""

    def __init__(self, place: Path, kinds: Sequence[str], **settings: Any) -> None:
        self.place = place
        self.members_file = place / "members.json"
        self._version = 0

        def start(number: int) -> Served:
            listen = {"listen": f"127.0.0.{number + 1}:0", "token": TOKEN, "members_file": str(self.members_file)}
            return Served({"workers_min": 1, "workers_max": 4, **listen, "gateway": kinds[number], **settings})

        self._starters = ThreadPoolExecutor(len(kinds))  # a server ends with the thread that started it
        self.nodes = list(self._starters.map(start, range(len(kinds))))
        self.endpoints = [
            f"http://127.0.0.{number + 1}:{node.facts['listen_port']}" for number, node in enumerate(self.nodes)
        ]
        self.lost: set[int] = set()
        self.tell(self.endpoints)

    @property
    def addresses(self) -> list[str]:
        return [endpoint[len("http://") :] for endpoint in self.endpoints]

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.nodes[number].port}"

    def write(self, text: str) -> None:
        new = self.place / "members.new"
        new.write_text(text)
        os.replace(new, self.members_file)

    def tell(self, endpoints: Sequence[str]) -> None:
        """Rewrite the members, and wait until every node's endpoint has them."""
        self._version += 1
        self.write(json.dumps({"version": self._version, "endpoints": list(endpoints)}))
        for number, node in enumerate(self.nodes):
            if number not in self.lost:
                wait_for(f"the members at node {number}", lambda node=node: self.version_at(node) == self._version)
                wait_for("its old workers to take nothing more", lambda node=node: len(accepting(node)) < 2)

    def version_at(self, node: Served) -> int:
        return int(node.ask("GET", "/gateway")["version"])

    def executed(self, number: int) -> int:
        """Executions at this node so far."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        host = f"127.0.0.{number + 1}"
        text = self.nodes[number].ask("GET", "/metrics", None, headers, self.nodes[number].facts["listen_port"], host)
        lines = [line for line in text["text"].splitlines() if line.startswith("muster_sandbox_executions_total{")]
        return sum(int(line.rpartition(" ")[2]) for line in lines)

    def kill(self, number: int) -> None:
        """As a node is lost: at once."""
        self.lost.add(number)
        self.nodes[number].stop(signal.SIGKILL)

    def close(self) -> None:
        for node in self.nodes:
            node.process.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.clean()
        self._starters.shutdown()


def kinds_here() -> list[str]:
    return [kind for kind in KINDS if kind == "python" or find_nginx()]


def nginx_of(served: Served) -> dict[int, str]:
    """The titles of its master and workers, by pid: found by the place that they were started in."""
    titles, parents = {}, {pid: parent for pid, (parent, *_) in read_processes().items()}
    for pid in parents:
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if title.startswith("nginx: "):
                titles[pid] = title
    masters = {pid for pid, title in titles.items() if "nginx: master" in title and f"{served.place}/" in title}
    return {pid: title for pid, title in titles.items() if pid in masters or parents[pid] in masters}


def accepting(served: Served) -> list[int]:
    """Workers that take connections."""
    return [pid for pid, title in nginx_of(served).items() if title == "nginx: worker process"]
