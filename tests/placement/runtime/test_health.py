"""Probes of a program, and the health that follows from them, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from muster.placement.runtime.health import NONE, TCP, Probe, ProgramHealth, run_probe


@pytest.fixture
async def answering() -> AsyncIterator[tuple[dict[str, bytes], int]]:
    """A server whose next answer can be set; silent when there is none."""
    answer = {"next": b"HTTP/1.1 200 OK\r\n\r\n"}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if answer["next"]:
            writer.write(answer["next"])
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield answer, server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 302 Found\r\n\r\n", ""),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "GET /health answered 503 Service Unavailable"),
        (b"SSH-2.0\r\n", "does not speak HTTP"),
        (b"", "no answer from 127.0.0.1:"),
    ],
)
async def test_an_answer_is_a_status_below_400(
    answering: tuple[dict[str, bytes], int], answer: bytes, verdict: str
) -> None:
    said, port = answering
    said["next"] = answer
    got = await run_probe(Probe(timeout=0.5), "127.0.0.1", port)
    assert verdict in got and bool(verdict) == bool(got)


async def test_for_tcp_a_connection_is_an_answer_and_a_closed_port_is_none(
    answering: tuple[dict[str, bytes], int],
) -> None:
    said, port = answering
    said["next"] = b""
    assert await run_probe(Probe(TCP), "127.0.0.1", port) == ""
    assert "127.0.0.1:1:" in await run_probe(Probe(TCP), "127.0.0.1", 1)


def test_a_probe_that_makes_no_sense_is_refused() -> None:
    for fields in ({"kind": "icmp"}, {"interval": 0}, {"failures": 0}):
        with pytest.raises(ValueError, match="probe"):
            Probe(**fields)  # type: ignore[arg-type]


async def test_health_falls_after_several_misses_in_a_row_and_rises_with_one_answer() -> None:
    answers = iter(["not yet", "", "miss", "", "miss", "miss", "", ""])
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen: list[tuple[str, int]] = []

    async def next_answer() -> str:
        seen.append((watch.state, watch.version))
        answer = next(answers, None)
        if answer is None:
            ended.set_result(None)
        return answer or ""

    watch = ProgramHealth(Probe(interval=0.001, failures=2), next_answer)
    await asyncio.wait_for(watch.run(ended), 120)
    states = [state for state, _ in seen]
    assert states == ["starting"] * 2 + ["ready"] * 4 + ["failing"] + ["ready"] * 2
    assert (watch.state, watch.version) == ("ended", 4)


async def test_news_come_at_once_or_after_the_time() -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watch = ProgramHealth(Probe(NONE), lambda: asyncio.sleep(0, ""))
    running = asyncio.create_task(watch.run(ended))
    await asyncio.wait_for(watch.wait_for_change(0, 60), 120)
    assert watch.state == "ready"
    await watch.wait_for_change(1, 0.01)
    waiting = asyncio.create_task(watch.wait_for_change(1, 60))
    ended.set_result(None)
    await asyncio.wait_for(asyncio.gather(waiting, running), 120)
    assert watch.state == "ended"
