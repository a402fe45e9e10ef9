"""The process of a proxy: its start, its errors and its end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from muster.endpoint import server
from muster.endpoint.proxy import ReplicaLost
from muster.endpoint.settings import EndpointSettings


def settings(tmp_path: Path, port: int = 0) -> EndpointSettings:
    return EndpointSettings("chat", port, "t", str(tmp_path / "members.json"))


async def test_it_serves_until_it_is_terminated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serving = asyncio.ensure_future(server.serve_endpoint(settings(tmp_path)))

    async def announced() -> None:
        while "muster endpoint: chat at http://127.0.0.1:" not in capsys.readouterr().out:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(announced(), 120)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(serving, 120) == 0


async def test_a_port_in_use_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert await server.serve_endpoint(settings(tmp_path, taken.getsockname()[1])) == 1
    assert "in use" in capsys.readouterr().err


async def test_members_that_cannot_be_used_are_reported_and_the_others_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "members.json").write_text("{")
    endpoint = server.EndpointServer(settings(tmp_path))
    await endpoint.open()

    async def reported() -> None:
        while "muster endpoint: members refused: " not in capsys.readouterr().err:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(reported(), 120)
    await endpoint.close()


async def test_a_lost_replica_is_one_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.get_running_loop()
    server._log_error(loop, {"message": "task", "exception": ReplicaLost("replica a:1 was lost")})
    assert capsys.readouterr().err == "muster endpoint: replica a:1 was lost\n"


def test_the_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        server._allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
