"""The zygote: modules that it imports, paths that programs may read, and the messages of its start."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox import forked
from tests.sandbox.forked import value_of

from muster.sandbox.jail import wire, zygote


def test_modules_are_imported_and_optional_ones_may_be_missing() -> None:
    assert value_of(lambda: zygote.preload(["json", "no_such_module?", "csv?"])) == ["json", "csv"]


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_for_test.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    def why(name: str) -> str:
        try:
            return str(zygote.preload([name]))
        except ImportError as error:
            return str(error)

    assert value_of(lambda: why("no_such_module")).startswith("cannot preload no_such_module: ")
    assert value_of(lambda: why("broken_for_test?")) == "cannot preload broken_for_test: division by zero"


def test_modules_that_start_threads_are_refused() -> None:
    def attempt() -> str:
        zygote._refuse_threads(["fine"])
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        try:
            zygote._refuse_threads(["numpy", "other"])
        except RuntimeError as error:
            return str(error)
        return ""

    assert value_of(attempt).startswith("preloading numpy, other started 1 threads")


def test_muster_is_not_there_for_programs() -> None:
    class FromMemory:
        of_sandbox = True

    def left() -> list[Any]:
        sys.meta_path.insert(0, FromMemory())  # type: ignore[arg-type]
        zygote.forget_muster()
        names = [name for name in sys.modules if name.partition(".")[0] == "muster"]
        return [names, any(isinstance(finder, FromMemory) for finder in sys.meta_path), "json" in sys.modules]

    assert value_of(left) == [[], False, True]


def test_read_only_paths_are_those_of_the_interpreter_and_the_requested_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("data")
    monkeypatch.setattr(sys, "path", ["", "/tmp", "/", "/usr/lib/python3", "/no/such/place"])
    found = zygote.read_only_paths([str(tmp_path / "data" / "below"), str(tmp_path / "data"), str(tmp_path / "link")])
    assert found == sorted(found) and {str(tmp_path / "data"), str(tmp_path / "link")} <= set(found)
    left_out = {"/tmp", "/", "/usr", "/usr/lib/python3", "/no/such/place", str(tmp_path / "data" / "below")}
    assert not left_out & set(found)
    reached = [path for path in (*found, *zygote.SYSTEM) if os.path.realpath(sys.prefix).startswith(path)]
    assert reached  # the interpreter's library is among them


def start(config: dict[str, Any]) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(120)

    def main() -> None:
        ours.close()
        zygote.main(theirs, config)

    pid = forked.start(main)
    theirs.close()
    return pid, ours


def test_a_zygote_reports_what_it_has_and_ends_with_the_engine() -> None:
    pid, channel = start({"preload": ["json"], "read_only": []})
    with channel:
        facts = wire.receive(channel)[0]
    assert facts is not None and (facts["event"], facts["preloaded"]) == ("ready", ["json"])
    assert facts["ipython"] == ("IPython" in sys.modules) and facts["executable"] == sys.executable
    assert forked.exit_code(pid) == forked.NOT_LEFT  # main returned


def test_a_zygote_that_cannot_start_says_why() -> None:
    pid, channel = start({"preload": ["no_such_module"], "read_only": []})
    with channel:
        failed = wire.receive(channel)[0]
    assert failed is not None and failed["event"] == "failed" and "cannot preload no_such_module" in failed["why"]
    assert forked.exit_code(pid) == forked.NOT_LEFT


def test_a_plan_with_a_control_socket_is_a_new_worker() -> None:
    pid, channel = start({"preload": [], "read_only": []})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(120)
    with channel, ours:
        wire.receive(channel)
        with theirs:
            plan = {"profile": "process", "memory_mb": 512, "processes": 1, "open_files": 1024, "file_mb": 1}
            more = {"scratch_mb": 1, "network": False, "counts_processes": False, "directory": "/no/such/place"}
            wire.send(channel, {**plan, **more}, (theirs.fileno(),))
        born, fds = wire.receive(ours)
        failed = wire.receive(ours)[0]
        for fd in fds:
            os.close(fd)
    assert born is not None and born["event"] == "born" and born["pid"] != pid
    assert failed is not None and failed["event"] == "failed" and "/no/such/place/home" in failed["why"]
    assert forked.exit_code(pid) == forked.NOT_LEFT
