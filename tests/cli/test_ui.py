"""`muster ui` as a command: the link it prints, the line for a remote host, its end."""

from __future__ import annotations

import http.client
import re
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

from tests.running import MusterCommand
from tests.views.synthetic import large_run


def fetch(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_the_printed_link_leads_in_and_an_interrupt_ends_it(muster: MusterCommand, tmp_path: Path) -> None:
    large_run(tmp_path / "elsewhere" / "train", nodes=8)
    (tmp_path / "token").write_text("s3cret\n")
    process = muster.start("ui", "--runs-dir", "elsewhere", "--metrics-token", "token")
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    status, headers, _ = fetch(link)
    assert status == 200
    origin, cookie = link.partition("/enter")[0], headers["Set-Cookie"].partition(";")[0]
    assert '"run":"train"' in fetch(f"{origin}/api/runs", Cookie=cookie)[2]
    assert 'muster_run_restarts{run="train"} 2' in fetch(f"{origin}/metrics", Authorization="Bearer s3cret")[2]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err


def test_on_a_remote_host_the_tunnel_is_printed_first(muster: MusterCommand) -> None:
    muster.env["SSH_CONNECTION"] = "10.0.0.1 50000 10.0.0.2 22"
    process = muster.start("ui")
    assert process.stdout is not None
    line, link = process.stdout.readline(), process.stdout.readline()
    port = urlsplit(link).port
    assert re.fullmatch(rf"on your own machine first:  ssh -N -L {port}:127\.0\.0\.1:{port} \S+@\S+\n", line)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)


def test_a_port_that_is_taken_is_named(muster: MusterCommand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = muster("ui", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1 and ": Address already in use" in done.stderr
