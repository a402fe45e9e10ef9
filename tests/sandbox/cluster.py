"""Several sandboxes on this machine, each on a loopback address of its own, as the nodes of a cluster are."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.running import wait_for
from tests.sandbox.serving import Served

TOKEN = "a-token.of~the/run=="
MANY = 10_000  # members


class Cluster:
    """This many servers, each of which serves all."""

    def __init__(self, place: Path, count: int, **settings: Any) -> None:
        self.place = place
        self.members_file = place / "members.json"
        self._version = 0

        def start(number: int) -> Served:
            listen = {"listen": f"127.0.0.{number + 1}:0", "token": TOKEN, "members_file": str(self.members_file)}
            return Served({"workers_min": 1, "workers_max": 4, **listen, **settings})

        self._starters = ThreadPoolExecutor(count)  # a server ends with the thread that started it
        self.nodes = list(self._starters.map(start, range(count)))
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


def declared(count: int) -> list[str]:
    """Endpoints at which nothing listens: connections are refused at once."""
    return [f"http://127.{64 + n // 62_500}.{n // 250 % 250}.{1 + n % 250}:9" for n in range(count)]
