"""The clients: sessions keep to their endpoint, nothing is run twice, lost sessions are replayed, batches spread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.running import wait_for
from tests.sandbox.http_messages import AMBIGUOUS
from tests.sandbox.serving import url

from muster.sandbox import AsyncClient, Client, Result, SandboxLost, SandboxRefused, SandboxUnavailable
from muster.sandbox.client import retry_rules
from muster.sandbox.client.retry_rules import BATCH_CHUNK, STREAMS_PER_NODE

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

NOWHERE = "http://127.0.0.1:9"


class Both:
    """The same calls through either client."""

    def __init__(self, kind: str, *args: Any, **options: Any) -> None:
        self.kind = kind
        self.loop = asyncio.new_event_loop()
        self.client: Any = (Client if kind == "sync" else AsyncClient)(*args, **options)

    def execute(self, *args: Any, **options: Any) -> Result:
        done = self.client.execute(*args, **options)
        return done if self.kind == "sync" else self.loop.run_until_complete(done)

    def batch(self, *args: Any, **options: Any) -> list[tuple[int, Result]]:
        if self.kind == "sync":
            return list(self.client.batch(*args, **options))

        async def gather() -> list[tuple[int, Result]]:
            return [one async for one in self.client.batch(*args, **options)]

        return self.loop.run_until_complete(gather())

    def delete_session(self, name: str) -> bool:
        done = self.client.delete_session(name)
        return done if self.kind == "sync" else self.loop.run_until_complete(done)

    def close(self) -> None:
        done = self.client.close()
        if done is not None:
            self.loop.run_until_complete(done)
        self.loop.close()


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Both]]:
    made: list[Both] = []

    def make(*args: Any, **options: Any) -> Both:
        made.append(Both(request.param, *args, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_programs_and_cells(client: Callable[..., Both], strong: Served) -> None:
    box = client(url(strong))
    result = box.execute("print(input())", std_input="hi")
    assert (result.status, result.stdout, result.completed) == ("completed", "hi\n", True)
    assert result.usage["wall_s"] > 0
    name = strong.new_session()
    assert box.execute("x = 1", session=name).new_session is True
    assert box.execute("x + 1", session=name).stdout == "2\n"
    assert box.delete_session(name) is True and box.delete_session(name) is False


def test_a_mistake_is_refused_and_not_tried_again(client: Callable[..., Both], strong: Served) -> None:
    with pytest.raises(SandboxRefused, match="unknown language 'cobol'"):
        client(url(strong)).execute("1", language="cobol")


def test_programs_take_turns_and_pass_by_an_endpoint_that_is_down(client: Callable[..., Both], strong: Served) -> None:
    box = client([NOWHERE, url(strong)])
    assert [box.execute("print(1)").stdout for _ in range(4)] == ["1\n"] * 4


def test_where_nobody_answers_the_caller_is_told_that_nothing_was_run(client: Callable[..., Both]) -> None:
    with pytest.raises(SandboxUnavailable, match="no endpoint accepted the request"):
        client(NOWHERE, wait_s=0.5).execute("print(1)")
    with pytest.raises(SandboxUnavailable, match="no endpoint accepted 3 programs of the batch"):
        client(NOWHERE).batch(["1", "2", "3"])


def test_overload_is_waited_out(client: Callable[..., Both], own: Callable[..., Served]) -> None:
    served = own(workers_min=1, workers_max=1, queue=0)
    blocker = threading.Thread(target=lambda: served.execute("import time; time.sleep(1)"))
    blocker.start()
    wait_for("the slot to be taken", lambda: served.ask("GET", "/load")["running"])
    assert client(url(served)).execute("print(1)").stdout == "1\n"
    blocker.join()


@contextlib.contextmanager
def endpoint_that_dies(answer: bytes = b"") -> Iterator[tuple[str, list[bytes]]]:
    """Takes a request, says `answer`, and closes the connection."""
    taken: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    taken.append(connection.recv(1 << 20))
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_a_request_whose_connection_broke_is_not_sent_again(client: Callable[..., Both]) -> None:
    with endpoint_that_dies() as (dying, taken):
        with pytest.raises(SandboxLost):
            client([dying, dying]).execute("print(1)")
        assert len(taken) == 1


@pytest.mark.parametrize("lengths", AMBIGUOUS)
def test_a_response_whose_length_is_ambiguous_is_lost(client: Callable[..., Both], lengths: bytes) -> None:
    body = b'{"process_status": "completed", "stdout": "", "stderr": ""}'
    head = b"HTTP/1.1 200 OK\r\n" + lengths.replace(b": 1\r", b": %d\r" % len(body)) + b"\r\n"
    with (
        endpoint_that_dies(head + body) as (endpoint, _),
        pytest.raises(SandboxLost, match=r"Content-Length|repeated|valid name"),
    ):
        client(endpoint).execute("print(1)")
    line = json.dumps({"index": 0, "process_status": "completed", "stdout": "", "stderr": ""}).encode() + b"\n"
    with endpoint_that_dies(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(line), line)) as (endpoint, _):
        assert client(endpoint).batch(["print(1)"])[0][1].reason == "lost"


def test_a_session_whose_name_cannot_be_sent_is_refused_before_anything_is_sent(client: Callable[..., Both]) -> None:
    with endpoint_that_dies() as (endpoint, taken):
        with pytest.raises(ValueError, match="line break"):
            client(endpoint).execute("1", session="a\r\nAuthorization: x")
        assert not taken


def test_programs_in_flight_at_a_lost_endpoint_say_so_and_the_rest_of_a_batch_goes_on(
    client: Callable[..., Both], strong: Served
) -> None:
    line = json.dumps({"index": 0, "process_status": "completed", "stdout": "first\n", "stderr": ""}).encode() + b"\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(line), line)
    with endpoint_that_dies(head) as (dying, taken):
        results = dict(client([dying, url(strong)]).batch([f"print({n})" for n in range(600)]))
    assert sorted(results) == list(range(600))
    lost = [number for number, result in results.items() if result.reason == "lost"]
    answered = [number for number, result in results.items() if result.stdout == "first\n"]
    assert 0 < len(lost) + len(answered) <= 2 * BATCH_CHUNK
    assert sum(one.startswith(b"POST") for one in taken) <= STREAMS_PER_NODE  # no more than was in flight there
    assert all(results[n].stdout == f"{n}\n" for n in results if n not in lost and n not in answered)


def test_a_batch_over_two_endpoints(
    client: Callable[..., Both], strong: Served, servers: Callable[[str], Served]
) -> None:
    programs: list[Any] = [f"print({number})" for number in range(300)]
    programs[7] = {"generated_code": "echo seven", "language": "shell"}
    results = dict(client([url(strong), url(servers("user"))]).batch(programs, timeout=60))
    assert results.pop(7).stdout == "seven\n"
    assert all(result.stdout == f"{number}\n" for number, result in results.items()) and len(results) == 299


def test_a_lost_session_is_replayed_and_no_cell_is_run_twice_in_it(
    client: Callable[..., Both], own: Callable[..., Served]
) -> None:
    served = own()
    box = client(url(served))
    box.execute("n = 0", session="a")
    box.execute("n += 1", session="a")
    box.execute("1 / 0", session="a")  # what failed is not replayed
    served.ask("DELETE", "/sessions/a")  # as an eviction would
    result = box.execute("n += 1\nprint(n)", session="a")
    assert (result.stdout, result.status) == ("2\n", "completed")
    assert served.cell("print(n)", "a")["stdout"] == "2\n"


@pytest.fixture
def readable_by_all() -> Iterator[Path]:
    """A directory that programs of another user can read; pytest's are private."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def test_a_replay_that_breaks_off_leaves_no_half_session_to_be_used(
    client: Callable[..., Both], own: Callable[..., Served], readable_by_all: Path
) -> None:
    served = own(read_only=[str(readable_by_all)])
    box = client(url(served))
    (readable_by_all / "once").write_text("yes")
    assert box.execute("n = 1", session="a").completed
    is_first = f"open({str(readable_by_all / 'once')!r}).read() == 'yes'"
    assert box.execute(f"assert {is_first}; n = 2", session="a").completed
    served.ask("DELETE", "/sessions/a")
    (readable_by_all / "once").write_text("no")  # the cell fails from now on
    for _ in range(2):  # the first time as the second: never on what was rebuilt by half
        with pytest.raises(SandboxLost, match="'a' could not be replayed"):
            box.execute("print(n)", session="a")
    assert box.delete_session("a") and box.execute("print(7)", session="a").stdout == "7\n"


def test_a_batch_that_only_waits_is_not_taken_for_lost(
    client: Callable[..., Both], own: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_rules, "RESPONSE_MARGIN_S", 0.5)  # so that the client depends on keep-alive lines
    served = own(workers_min=1, workers_max=1)
    busy = threading.Thread(target=lambda: served.execute("import time; time.sleep(8)"))
    busy.start()
    wait_for("the only slot to be taken", lambda: served.ask("GET", "/load")["running"])
    results = dict(client(url(served)).batch(["print(1)"], timeout=4.5))
    assert results[0].stdout == "1\n"
    busy.join()
