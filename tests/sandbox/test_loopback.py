"""The network of programs: at full a private loopback for TCP, at the floor none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

# Prints what a client received from a server of the same program, for each address.
SERVE_AND_ASK = """
import socket, threading
for family, bound, name in (
    (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
    (socket.AF_INET, "", "localhost"),
    (socket.AF_INET6, "::1", "::1"),
):
    server = socket.create_server((bound, 8765), family=family)
    def answer():
        with server.accept()[0] as connection:
            connection.sendall(b"hello")
    thread = threading.Thread(target=answer)
    thread.start()
    with socket.create_connection((name, 8765)) as client:
        print(client.makefile().read())
    thread.join()
    server.close()
"""
INTERFACES = "print([line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])"
BEYOND = """
import errno, socket
for address in ("192.0.2.1", "10.0.0.1", "169.254.169.254"):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.settimeout(60)
        print(errno.errorcode[one.connect_ex((address, 80))])
"""
# Connects to itself and fills the buffers of every connection; prints how much fits into one.
FILL = """
import socket
listener = socket.create_server(("127.0.0.1", 0), backlog=100)
kept, most = [], 0
for _ in range({connections}):
    client = socket.create_connection(listener.getsockname())
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        client.setsockopt(socket.SOL_SOCKET, option, 64 << 20)
    kept += [client, listener.accept()[0]]
    client.setblocking(False)
    queued = 0
    try:
        while True:
            queued += client.send(bytes(65536))
    except BlockingIOError:
        most = max(most, queued)
print(most, flush=True)
"""
OTHER_SOCKETS = """
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_PACKET, socket.AF_NETLINK):
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            socket.socket(family, kind)
            print("made")
        except PermissionError:
            print("refused")
"""


def has_namespaces(served: Served) -> bool:
    return bool(served.facts["isolation"]["level"] == "full")


def test_a_program_reaches_its_own_servers_at_full_only(box: Served) -> None:
    if has_namespaces(box):
        assert box.out(SERVE_AND_ASK, timeout=60) == "hello\n" * 3
        assert box.out(INTERFACES) == "['lo']\n"
    else:
        assert "PermissionError" in box.execute(SERVE_AND_ASK)["stderr"]


def test_nothing_beyond_the_loopback_is_there(strong: Served) -> None:
    assert set(strong.out(BEYOND, timeout=60).split()) == {"ENETUNREACH"}


def test_only_tcp_is_there(strong: Served) -> None:
    assert strong.out(OTHER_SOCKETS) == "refused\n" * 8


def test_buffers_of_connections_are_small_whatever_a_program_asks_for(box: Served) -> None:
    """Their memory is the host's: a program that fills it would slow all connections of the host."""
    if has_namespaces(box):
        assert int(box.out(FILL.format(connections=20), timeout=60)) < 1 << 20


def test_a_program_with_too_many_connections_is_ended_where_no_cgroup_counts_their_memory(
    own: Callable[..., Served],
) -> None:
    served = own("user", processes=32)
    if has_namespaces(served):
        many = f"import os, time\nfor _ in range(4): os.fork()\n{FILL.format(connections=100)}\ntime.sleep(600)"
        answer = served.execute(many, timeout=120, report=True)
        assert (answer["process_status"], answer["reason"]) == ("error", "connections"), answer


def test_two_programs_use_the_same_port_at_the_same_time(strong: Served) -> None:
    bodies = [{"generated_code": SERVE_AND_ASK, "timeout": 60, "language": "python"}] * 2
    answer = strong.ask("POST", "/batch", {"requests": bodies})
    assert answer["text"].count(r"hello\nhello\nhello\n") == 2
