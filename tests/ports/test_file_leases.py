"""Ports that are recorded in a file: none is leased twice at a time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from muster.ports import file_leases as ports
from muster.ports.ranges import ephemeral_range

# Fifty processes that wait for one pipe to be closed, lease a port, and print it.
FIFTY = """
import os, sys
from pathlib import Path
from muster.ports import file_leases as ports
read, write = os.pipe()
for _ in range(50):
    if os.fork() == 0:
        os.close(write)
        os.read(read, 1)
        os.write(1, b"%d\\n" % ports.lease_port(30000, directory=Path(sys.argv[1])))
        os._exit(0)
os.close(write)
for _ in range(50): os.wait()
"""


def test_fifty_concurrent_processes_get_fifty_ports(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIFTY, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100)
    given = [int(line) for line in done.stdout.split()]
    assert len(given) == len(set(given)) == 50 and min(given) >= 30000


def test_a_port_with_a_listener_is_not_leased(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert ports.lease_port(port, directory=tmp_path) != port
        with pytest.raises(OSError, match=f"no free port from {port} to {port}"):
            ports.lease_port(port, last=port, directory=tmp_path)


def test_a_port_is_leased_until_its_holder_is_gone(tmp_path: Path) -> None:
    first = ports.lease_port(30100, directory=tmp_path)
    ports.release_port(first, directory=tmp_path)
    with subprocess.Popen(["sleep", "1000"]) as holder:
        assert ports.lease_port(first, holder=holder.pid, directory=tmp_path) == first
        assert ports.lease_port(first, directory=tmp_path) != first
        holder.kill()
    assert ports.lease_port(first, directory=tmp_path) == first


def test_without_a_holder_a_port_is_leased_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.lease_port(30200, directory=tmp_path)
    assert ports.lease_port(first, directory=tmp_path) != first
    monkeypatch.setattr(ports, "UNBOUND_LEASE_S", -1.0)
    other = ports.lease_port(30300, directory=tmp_path)
    assert ports.lease_port(other, directory=tmp_path) == other


def test_a_port_without_a_first_one_is_outside_the_ephemeral_range(tmp_path: Path) -> None:
    low, high = ephemeral_range()
    assert not low <= ports.lease_port(directory=tmp_path) <= high


def test_a_line_that_was_cut_short_does_not_matter(tmp_path: Path) -> None:
    first = ports.lease_port(30400, directory=tmp_path)
    with open(tmp_path / "leases.jsonl", "a") as file:
        file.write('{"port": 1')
    assert ports.lease_port(first, directory=tmp_path) != first


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a directory somebody else's")
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        ports.lease_port(directory=tmp_path)


def test_where_another_user_occupies_the_directory_s_name_all_processes_find_the_same_other_one(tmp_path: Path) -> None:
    usual = tmp_path / f"muster-ports-{os.getuid()}"
    assert ports._directory(tmp_path) == usual == ports._directory(tmp_path)
    usual.rmdir()
    usual.symlink_to("/etc")
    (tmp_path / f"{usual.name}-0").symlink_to("/etc")
    other = ports._directory(tmp_path)
    assert other == ports._directory(tmp_path) and other.stat().st_mode & 0o777 == 0o700
    assert ports.lease_port(directory=other)


@pytest.mark.parametrize("line", ["{}}", "[1]", '{"port": 4', '{"a": 1}', "\x00", '{"port": "x", "until": "y"}'])
def test_a_broken_lease_is_skipped_and_the_others_remain(tmp_path: Path, line: str) -> None:
    first = ports.lease_port(directory=tmp_path)
    with (tmp_path / "leases.jsonl").open("a") as file:
        file.write(line + "\n")
    second = ports.lease_port(first, directory=tmp_path)
    assert second != first


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
def test_a_full_disk_refuses_a_lease_and_keeps_those_there_are(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "small", str(tmp_path)], check=True)
    try:
        given, refused = [], False
        for _ in range(200):
            try:
                given.append(ports.lease_port(30000, directory=tmp_path))
            except OSError as error:
                refused = "No space" in str(error)
                break
        assert refused and len(given) == len(set(given)) > 20
        ports.release_port(given.pop(), directory=tmp_path)
        ports.release_port(given.pop(), directory=tmp_path)
        assert ports.lease_port(30000, directory=tmp_path) not in given
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
