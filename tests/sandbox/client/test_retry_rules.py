"""The rules of both clients: which endpoint, what may be sent again, how a response is read."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from muster.sandbox import Result, SandboxLost, SandboxRefused
from muster.sandbox.client.retry_rules import (
    MUST_EXIST,
    RESPONSE_MARGIN_S,
    STREAMS_MAX,
    UNREACHABLE_S,
    ConnectionRefused,
    EndpointSelector,
    HttpAnswer,
    SessionHistories,
    batch_calls,
    batch_streams,
    check_replayed,
    execute_call,
    headers,
    lost_result,
    plain_call,
    raise_refusal,
    result_of,
    retry_pauses,
)
from muster.sandbox.hash_ring import ranked


def test_a_gateways_own_words() -> None:
    with pytest.raises(SandboxLost, match="node x broke off"):
        result_of(HttpAnswer(502, b'{"error": "node x broke off"}'))
    with pytest.raises(SandboxLost, match="HTTP 504"):
        result_of(HttpAnswer(504, b"<html>"))
    body = b'{"process_status": "completed", "stdout": "", "stderr": ""}'
    assert result_of(HttpAnswer(200, body, None, "n7")).node == "n7"


@pytest.mark.parametrize(
    ("answer", "streams"),
    [
        (None, 2),
        (HttpAnswer(404, b"{}"), 2),
        (HttpAnswer(200, b"?"), 2),
        (HttpAnswer(200, b'{"endpoints": []}'), 2),
        (HttpAnswer(200, b'{"endpoints": ["a", "b", "c"]}'), 6),
    ],
)
def test_a_batch_has_streams_for_every_node_behind_an_endpoint(answer: Any, streams: int) -> None:
    assert batch_streams(answer) == streams


def test_a_workspace_is_named_where_gateways_see_it() -> None:
    call = execute_call("ls", "shell", 1, None, False, {"workspace": "w"})
    assert call.headers["X-Workspace-ID"] == "w" and call.key == "w"


def test_a_session_that_was_moved_stays_where_it_is() -> None:
    """Its first endpoint may come back, with a state of before."""
    selector = EndpointSelector(["http://a:1", "http://b:1", "http://c:1"])
    first, second, _ = ranked("s", selector.endpoints)
    selector.mark_reachable(first, "s")
    assert next(selector.candidates("s", 0.0)) == first
    selector.mark_unreachable(first, 0.0)
    selector.mark_reachable(second, "s")
    assert next(selector.candidates("s", 100.0)) == second
    selector.forget("s")
    assert next(selector.candidates("s", 100.0)) == first


def test_endpoints_take_turns_and_an_unreachable_one_is_tried_last() -> None:
    selector = EndpointSelector(["a", "b", "c"])
    assert [next(selector.candidates(None, 0.0)) for _ in range(4)] == ["b", "c", "a", "b"]
    selector.mark_unreachable("c", 10.0)
    assert list(selector.candidates(None, 10.0))[-1] == "c"


# -- requests -------------------------------------------------------------------------------------------------------


def test_a_cell_with_history_requires_its_session() -> None:
    first = execute_call("x = 1", "ipython", 5, "s", False, {})
    assert (first.path, first.key, first.timeout) == ("/execute", "s", 5 + RESPONSE_MARGIN_S)
    assert first.headers == {"Content-Type": "application/json", "X-Session-ID": "s"}
    assert json.loads(first.body) == {"generated_code": "x = 1", "timeout": 5, "language": "ipython"}
    assert execute_call("x", "ipython", 5, "s", True, {}).headers[MUST_EXIST] == "1"
    assert execute_call("x", "python", 5, None, False, {"std_input": "i"}).key is None


def test_headers_have_the_endpoint_and_the_token() -> None:
    call = plain_call("/health")
    assert headers(call, "http://10.0.0.1:7000", None) == {"Host": "10.0.0.1:7000"}
    assert headers(call, "http://n1:7000", "t0p")["Authorization"] == "Bearer t0p"


@pytest.mark.parametrize(
    ("programs", "streams", "firsts"),
    [(0, 2, []), (1, 2, [0]), (5, 2, [0, 3]), (1000, 2, [128 * n for n in range(8)]), (3, 64, [0, 1, 2])],
)
def test_a_batch_is_split_for_its_streams(programs: int, streams: int, firsts: list[int]) -> None:
    calls = batch_calls([f"print({n})" for n in range(programs)], "python", 5, streams)
    assert [first for first, _ in calls] == firsts
    bodies = [one for _, call in calls for one in json.loads(call.body)["requests"]]
    assert [one["generated_code"] for one in bodies] == [f"print({n})" for n in range(programs)]


def test_a_program_of_a_batch_may_have_fields_of_its_own() -> None:
    ((_, call),) = batch_calls([{"generated_code": "ls", "language": "shell"}], "python", 5, 2)
    assert json.loads(call.body)["requests"] == [{"timeout": 5, "language": "shell", "generated_code": "ls"}]


def test_streams_have_a_maximum() -> None:
    assert batch_streams(HttpAnswer(200, json.dumps({"endpoints": ["x"] * 1000}).encode())) == STREAMS_MAX


# -- responses ------------------------------------------------------------------------------------------------------

BODY = b'{"process_status": "completed", "stdout": "o", "stderr": "e", "new_session_created": true, "reason": "memory"}'


def test_a_result_has_all_parts_of_the_response() -> None:
    result = result_of(HttpAnswer(200, BODY, '{"wall_s": 1.5}', "n1"))
    assert result == Result("completed", "o", "e", True, "memory", {"wall_s": 1.5}, "n1")
    assert result.completed and not lost_result("n2").completed and "n2" in lost_result("n2").stderr


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (HttpAnswer(400, b'{"error": "unknown language"}'), SandboxRefused, "unknown language"),
        (HttpAnswer(401, b"[]"), SandboxRefused, "HTTP 401"),
        (HttpAnswer(200, b"?"), SandboxLost, "not JSON"),
        (HttpAnswer(502, b'{"error": 5}'), SandboxLost, "5"),
    ],
)
def test_other_responses_are_errors(answer: HttpAnswer, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        result_of(answer)


@pytest.mark.parametrize(
    ("status", "error"),
    [(503, ConnectionRefused), (400, SandboxRefused), (401, SandboxRefused), (502, ValueError), (504, ValueError)],
)
def test_a_batch_that_was_not_begun_may_be_sent_elsewhere_only_after_a_503(status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="why"):
        raise_refusal(HttpAnswer(status, b'{"error": "why"}'))


# -- endpoints and histories ----------------------------------------------------------------------------------------


def test_an_endpoint_that_answers_again_is_reachable() -> None:
    selector = EndpointSelector(["http://a:1/", "http://b:1"])
    assert selector.endpoints == ["http://a:1", "http://b:1"]
    selector.mark_unreachable("http://a:1", 10.0)
    assert {next(selector.candidates(None, 10.0)) for _ in range(4)} == {"http://b:1"}
    assert {next(selector.candidates(None, 10.0 + UNREACHABLE_S)) for _ in range(2)} == set(selector.endpoints)
    selector.mark_unreachable("http://a:1", 10.0)
    selector.mark_reachable("http://a:1")
    assert {next(selector.candidates(None, 10.0)) for _ in range(2)} == set(selector.endpoints)
    with pytest.raises(ValueError, match="at least one endpoint"):
        EndpointSelector([])


def test_completed_cells_are_kept_for_a_replay() -> None:
    histories = SessionHistories()
    histories.add("s", "x = 1", 5, Result("completed", "", ""))
    histories.add("s", "1 / 0", 5, Result("error", "", ""))
    histories.add(None, "y", 5, Result("completed", "", ""))
    assert histories.of("s") == [("x = 1", 5)] and histories.of("t") == [] and histories.of(None) == []


def test_a_session_is_incomplete_from_the_begin_of_a_replay_to_its_end() -> None:
    histories = SessionHistories()
    assert histories.is_complete("s")
    histories.begin_replay("s")
    assert not histories.is_complete("s")
    histories.end_replay("s")
    assert histories.is_complete("s")
    histories.begin_replay("s")
    histories.forget("s")
    assert histories.is_complete("s") and histories.of("s") == []


def test_a_replayed_cell_must_complete_again() -> None:
    check_replayed("s", Result("completed", "", ""))
    for again, how in ((None, "was lost again"), (Result("timeout", "", ""), "timeout")):
        with pytest.raises(SandboxLost, match=f"session 's' could not be replayed: a cell that had completed {how}"):
            check_replayed("s", again)


def test_pauses_double_up_to_a_maximum() -> None:
    assert list(itertools.islice(retry_pauses(), 7)) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
