"""Sessions and workspaces belong to the user, and with a secret to those who know it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.sandbox.forked import needs_root
from tests.sandbox.serving import NOBODY, a_python_for_anybody

from muster.sandbox.api.sender import sender_of
from muster.sandbox.http.codec import HttpRequest

if TYPE_CHECKING:
    from tests.sandbox.cluster import Cluster
    from tests.sandbox.serving import Served

ASK = """
import http.client, json, sys
port, method, path, body, headers = json.loads(sys.argv[1])
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
connection.request(method, path, json.dumps(body), {"Content-Type": "application/json", **headers})
response = connection.getresponse()
print(json.dumps([response.status, json.loads(response.read())]))
"""


def request(user: int | None = None, **headers: str) -> HttpRequest:
    return HttpRequest("GET", "/", {name.replace("_", "-"): value for name, value in headers.items()}, b"", user)


def test_the_server_s_own_user_needs_nothing() -> None:
    assert sender_of(request(os.getuid()), False).owner == sender_of(request(), False).owner == ""
    assert sender_of(request(12345), False).owner == "12345 "
    assert sender_of(request(12345, x_muster_user="0"), False).owner == "12345 "  # it is not a gateway


def test_between_nodes_the_gateway_says_who_asked() -> None:
    assert sender_of(request(0, x_muster_user="12345"), True).owner == "12345 "
    assert sender_of(request(0, x_muster_user=str(os.getuid())), True).owner == ""


def test_a_secret_makes_another_owner_and_is_not_kept() -> None:
    one, other = (sender_of(request(os.getuid(), x_client_secret=secret), False) for secret in ("s1", "s2"))
    assert len({one.owner, other.owner, ""}) == 3 and "s1" not in one.owner
    assert one.headers == {"x-muster-user": str(os.getuid()), "x-client-secret": "s1"}


def test_slots_are_divided_among_clients_by_their_name_else_by_owner() -> None:
    assert sender_of(request(12345, x_client_id="a"), False).client == "a"
    assert sender_of(request(12345), False).client == "12345 "


def ask_as_another(served: Served, *asked: Any) -> Any:
    python = a_python_for_anybody()
    if python is None:
        pytest.skip("no Python here that another user may run")
    sent = json.dumps([served.port, *asked])
    done = subprocess.run([python, "-I", "-c", ASK, sent], user=NOBODY, cwd="/", capture_output=True, check=True)
    return json.loads(done.stdout)


@needs_root
def test_another_user_of_the_node_has_other_sessions_and_workspaces(strong: Served) -> None:
    name = strong.new_session()
    strong.cell("x = 'mine'", name)
    strong.execute("open('f', 'w').write('mine')", headers={"X-Workspace-ID": name})
    cell = {"generated_code": "'x' in globals()", "timeout": 60}
    assert name not in ask_as_another(strong, "GET", "/sessions", None, {})[1]["sessions"]
    assert ask_as_another(strong, "DELETE", f"/sessions/{name}", None, {})[0] == 404
    assert ask_as_another(strong, "DELETE", f"/workspaces/{name}", None, {})[0] == 404
    answer = ask_as_another(strong, "POST", "/execute", cell, {"X-Session-ID": name})[1]
    assert (answer["stdout"], answer["new_session_created"]) == ("False\n", True)
    look = {"generated_code": "import os; print(os.listdir())", "timeout": 60, "language": "python"}
    assert ask_as_another(strong, "POST", "/execute", look, {"X-Workspace-ID": name})[1]["stdout"] == "[]\n"
    assert strong.cell("x", name)["stdout"] == "'mine'\n"
    assert ask_as_another(strong, "DELETE", f"/sessions/{name}", None, {})[0] == 200
    assert ask_as_another(strong, "DELETE", f"/workspaces/{name}", None, {})[0] == 200
    assert strong.ask("DELETE", f"/sessions/{name}").status == strong.ask("DELETE", f"/workspaces/{name}").status == 200


def test_a_session_with_a_secret_is_only_for_those_who_know_it(start: Callable[..., Cluster]) -> None:
    cluster = start(2)
    one, other = cluster.nodes
    secret = {"X-Client-Secret": "s3cret"}
    one.cell("x = 5", "shared", headers=secret)
    assert other.cell("x", "shared", headers=secret)["stdout"] == "5\n"
    assert "NameError" in other.cell("x", "shared")["stdout"]
    assert list(other.ask("GET", "/sessions", headers=secret)["sessions"]) == ["shared"]
    assert other.ask("DELETE", "/sessions/shared", headers={"X-Client-Secret": "wrong"}).status == 404
    assert other.ask("DELETE", "/sessions/shared", headers=secret).status == 200
    assert other.ask("DELETE", "/sessions/shared").status == 200
