"""A gang's job, and a stand-in for the leader's connections, for tests of the leader."""

from __future__ import annotations

import asyncio
from typing import Any

from muster.agent.job import Job

FIELDS = {"groups": [], "nodes": 3, "ray": False, "procs_per_node": 2, "stop_grace": 30.0}
JOB = Job(**{**dict.fromkeys(Job.__dataclass_fields__), **FIELDS})


class SentMessages:
    """Replaces the connections: records messages, and answers requests for stacks."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str, dict[str, Any]]] = []
        self.stacks: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        self.sent.append((rank, kind, fields))

    async def ask(self, kind: str, timeout: float) -> list[bool]:
        return await self.stacks

    def of(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        return [(rank, fields) for rank, sent, fields in self.sent if sent == kind]
