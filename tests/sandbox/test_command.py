"""`muster sandbox`: the command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.running import wait_for

if TYPE_CHECKING:
    from tests.running import MusterCommand
    from tests.sandbox.serving import Served


def test_exec_runs_a_program_and_passes_its_output_and_exit_code_on(muster: MusterCommand, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import sys\nprint(input())\nprint('e', file=sys.stderr)\nsys.exit(3)")
    (tmp_path / "in").write_text("hi")
    done = muster("sandbox", "exec", "p.py", "--stdin", "in")
    assert (done.returncode, done.stdout, done.stderr) == (3, "hi\n", "e\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "p.py"]


def test_exec_ends_a_program_at_its_timeout(muster: MusterCommand) -> None:
    done = muster("sandbox", "exec", "-c", "while true; do :; done", "--language", "shell", "--timeout", "1")
    assert (done.returncode, done.stderr) == (124, "muster sandbox: it was ended after 1 s\n")


def test_exec_asks_a_running_sandbox(muster: MusterCommand, strong: Served) -> None:
    url = f"http://127.0.0.1:{strong.port}"
    done = muster("sandbox", "exec", "-c", "print(6 * 7)", "--url", url)
    assert (done.returncode, done.stdout) == (0, "42\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["exec"], "give either FILE or -c CODE"),
        (["exec", "-c", "1", "--language", "cobol"], "unknown language 'cobol'"),
        (["serve", "--workers-min", "5", "--workers-max", "2"], "workers_min is 5, more than workers_max, 2"),
        (["serve", "--listen", "0.0.0.0:7000"], "listen needs a token"),
        (["serve", "--members-file", "m"], "members_file needs listen"),
        (["load", "--url", "http://127.0.0.1:9"], "no sandbox answers at http://127.0.0.1:9"),
        (["serve", "--isolation", "none"], "'none' is not one of"),
    ],
)
def test_mistakes_are_told_in_one_line(muster: MusterCommand, words: list[str], told: str) -> None:
    done = muster("sandbox", *words)
    assert done.returncode in (1, 2) and told in done.stderr and "Traceback" not in done.stderr


def test_serve_announces_itself_and_leaves_on_sigterm(muster: MusterCommand, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0p\n")
    (tmp_path / "token").chmod(0o600)
    words = [
        "--port",
        "0",
        "--ready-file",
        "ready",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        "token",
        "--members-file",
        "members",
        "--preload",
        "json",
    ]
    process = muster.start("sandbox", "serve", *words, "--scratch-dir", str(tmp_path))
    wait_for("the sandbox", lambda: (tmp_path / "ready").exists() or process.poll() is not None)
    facts = json.loads((tmp_path / "ready").read_text())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err == ""
    gateway, between = facts["gateway"], facts["listen_port"]
    assert f"on {facts['url']}, for all members by {gateway}, for other nodes on port {between}: isolation" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["token"]


def test_load_names_the_host_and_its_busiest_workers(muster: MusterCommand, strong: Served) -> None:
    strong.out("print(1)")
    url = f"http://127.0.0.1:{strong.port}"
    done = muster("sandbox", "load", "--url", url, "--json")
    (one,) = json.loads(done.stdout).values()
    assert done.returncode == 0 and one["host"] == socket.gethostname() and one["busiest"][0]["executions"] > 0
    assert socket.gethostname() in muster("sandbox", "load", "--url", url).stdout


def test_bench_measures(muster: MusterCommand) -> None:
    done = muster("sandbox", "bench", "--clients", "2", "--requests", "10", "--json", "--preload", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["python"]["requests"] == 10 and found["warm session"]["failures"] == 0


def test_an_interrupt_while_it_starts_leaves_nothing(muster: MusterCommand, tmp_path: Path) -> None:
    process = muster.start("sandbox", "serve", "--port", "0", "--scratch-dir", str(tmp_path), stdout=subprocess.DEVNULL)
    wait_for("its scratch", lambda: list(tmp_path.glob("muster-sandbox-*")))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []
    process.communicate()


def test_a_token_that_others_may_read_is_reported(muster: MusterCommand, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t0p")
    for mode, expected in ((0o644, True), (0o600, False)):
        token.chmod(mode)
        done = muster("sandbox", "serve", "--port", "70000", "--token-file", str(token))
        assert (f"other users may read {token}" in done.stderr) is expected
