"""The user at the other end of a connection on loopback."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest
from tests.sandbox.forked import needs_root
from tests.sandbox.serving import NOBODY, a_python_for_anybody

from muster.sandbox.http import peer

CONNECT = "import socket, sys; c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_our_own_connections_have_our_user(family: socket.AddressFamily, address: str) -> None:
    try:
        listening = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("this machine has no such address")
    with listening, socket.create_connection(listening.getsockname()[:2]):
        accepted, found = listening.accept()
        with accepted:
            assert peer.user_of_peer(accepted.getsockname(), found) == os.getuid()


@needs_root
def test_another_user_s_connection_has_that_user() -> None:
    python = a_python_for_anybody()
    if python is None:
        pytest.skip("no Python here that another user may run")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        client = subprocess.Popen([python, "-I", "-c", CONNECT, port], stdin=subprocess.PIPE, user=NOBODY, cwd="/")
        accepted, found = listening.accept()
        with accepted:
            assert peer.user_of_peer(accepted.getsockname(), found) == NOBODY
        client.communicate()


def test_a_connection_that_is_not_there_has_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer.user_of_peer(("127.0.0.1", 1), ("127.0.0.1", 2)) == peer.UNKNOWN
    assert peer.user_of_peer(("127.0.0.1", 1), ("nonsense", 2)) == peer.UNKNOWN
    monkeypatch.setattr(peer, "NETLINK_SOCK_DIAG", 99)
    assert peer.user_of_peer(("127.0.0.1", 1), ("127.0.0.1", 2)) == peer.UNKNOWN
