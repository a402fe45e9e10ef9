"""The members of a cluster: the file, its checks, and changes of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.sandbox.cluster import MANY, declared

from muster.sandbox.gateway import peers
from muster.sandbox.gateway.peers import PeerList, PeerListError, parse, reachable_address


def test_members_are_sorted_and_each_is_there_once() -> None:
    found = parse({"version": 3, "endpoints": ["http://10.0.0.9:1", "http://10.0.0.1:1/", "http://10.0.0.9:01"]})
    assert found == PeerList(3, ("http://10.0.0.1:1", "http://10.0.0.9:1"))
    assert parse({"endpoints": ["http://[FD00::3]:7001"]}).endpoints == ("http://[fd00::3]:7001",)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://10.0.0.1:7001; } server { listen 80",
        "http://10.0.0.1:7001\n",
        "http://10.0.0.1:7001 backup",
        "http://10.0.0.1:$port",
        "http://user@10.0.0.1:80",
        "https://10.0.0.1:80",
        "http://10.0.0.1",
        "http://n1:7001",
        "http://10.0.0.1:0",
        "http://10.0.0.1:65536",
        "http://10.0.0.1:80/path",
        "http://0.0.0.0:80",
        "unix:/tmp/x",
        "http://[fd00::3%25eth0]:80",
        "http://[]:80",
        "http://1.2.3:80",
        "http://10.0.0.1:٣",
        "",
        7,
        None,
    ],
)
def test_nothing_but_an_address_and_a_port_is_a_member(endpoint: object) -> None:
    with pytest.raises(PeerListError, match="endpoint "):
        parse({"version": 1, "endpoints": ["http://10.0.0.1:7001", endpoint]})


@pytest.mark.parametrize("data", [[], {}, {"endpoints": "x"}, {"version": "1", "endpoints": []}, {"version": -1}, None])
def test_other_files_are_no_members(data: object, tmp_path: Path) -> None:
    (tmp_path / "members").write_text(json.dumps(data))
    with pytest.raises(PeerListError, match=r"members: (it must be|version is)"):
        peers.read(str(tmp_path / "members"))


def test_where_a_server_is_reached_from_its_own_node() -> None:
    assert reachable_address("0.0.0.0", 7) == "127.0.0.1:7" and reachable_address("::", 7) == "[::1]:7"
    assert reachable_address("10.0.0.1", 7) == "10.0.0.1:7"


def test_more_members_than_the_limit_are_refused_and_10_000_are_not() -> None:
    assert len(parse({"endpoints": declared(MANY)}).endpoints) == MANY
    with pytest.raises(PeerListError, match="are more than"):
        parse({"endpoints": declared(20_000)})


def test_an_endpoint_s_address() -> None:
    assert peers.address_of("http://10.0.0.1:7") == "10.0.0.1:7"
    assert peers.PeerList(3, ("http://10.0.0.1:7",)).to_json() == {"version": 3, "endpoints": ["http://10.0.0.1:7"]}


# -- changes of the file ----------------------------------------------------------------------------------------------


class Watched:
    """A watch of a file, and what it has reported."""

    def __init__(self, path: Path) -> None:
        self.path, self.changes, self.rejections = path, list[PeerList](), list[str]()
        self.watch = peers.PeerWatch(str(path), self._changed, self.rejections.append)

    async def _changed(self, members: PeerList) -> None:
        self.changes.append(members)

    async def poll(self, text: str | None) -> None:
        """Replace the file, and look."""
        if text is not None:
            new = self.path.with_name("new")
            new.write_text(text)
            new.replace(self.path)
        await self.watch.poll()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "members")


ONE = '{"version": 1, "endpoints": ["http://10.0.0.1:7"]}'


async def test_members_are_reported_when_they_change(watched: Watched) -> None:
    await watched.poll(None)  # there is no file yet
    assert (watched.changes, watched.watch.problem) == ([], None)
    await watched.poll(ONE)
    await watched.poll(None)
    await watched.poll(ONE)  # another file with the same content
    await watched.poll('{"version": 2, "endpoints": []}')
    assert watched.changes == [PeerList(1, ("http://10.0.0.1:7",)), PeerList(2, ())] and watched.rejections == []


async def test_a_file_that_is_refused_changes_nothing_and_is_told_once(watched: Watched) -> None:
    await watched.poll(ONE)
    for _ in range(2):
        await watched.poll("nonsense")
    assert len(watched.rejections) == 1 and watched.watch.problem == watched.rejections[0]
    assert watched.rejections[0].startswith(f"{watched.path}: ")
    await watched.poll("{}")
    assert len(watched.rejections) == 2 and len(watched.changes) == 1
    await watched.poll(ONE)
    assert watched.watch.problem is None and watched.watch.members.version == 1


async def test_removing_the_file_changes_nothing(watched: Watched) -> None:
    await watched.poll(ONE)
    watched.path.unlink()
    await watched.poll(None)
    assert watched.watch.members.version == 1 and watched.watch.problem is None


async def test_a_file_that_cannot_be_read_is_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(peers, "read", lambda path: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        await watched.poll(ONE)
    assert watched.rejections == [f"{watched.path}: Input/output error"] and watched.changes == []
    await watched.poll(None)
    assert len(watched.changes) == 1 and watched.watch.problem is None


async def test_a_defect_does_not_end_the_polling(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MEMBERS_POLL_S", 0.0)
    polls = 0
    enough = asyncio.Event()

    async def fail() -> None:
        nonlocal polls
        polls += 1
        if polls == 3:
            enough.set()
        raise RuntimeError("a defect")

    monkeypatch.setattr(watched.watch, "poll", fail)
    polling = asyncio.ensure_future(watched.watch.poll_forever())
    await asyncio.wait_for(enough.wait(), 120)
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)
    assert watched.rejections == [f"{watched.path}: RuntimeError('a defect')"]
