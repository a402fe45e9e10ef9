"""`muster lab`: what its commands print and return; tests/lab starts real labs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.cli.invocation import Finished, Invoke

from muster.cli import lab
from muster.lab import LabError, LabUnavailable
from muster.lab.lab import LabStatus, NodeStatus

NODES = (
    NodeStatus("n1", "10.0.0.1", 101, True, True, "idle"),
    NodeStatus("n2", "10.0.0.2", 102, True, False, "down*"),
    NodeStatus("n3", "10.0.0.3", None, False, False, "down"),
)


class RecordingLab:
    """Stands in for a lab and records what it is asked to do."""

    calls: ClassVar[list[tuple[Any, ...]]] = []
    left: ClassVar[list[list[str]]] = []
    answers = True
    refusal: LabError | None = None

    def __init__(self, nodes: int, proctrack: str, **options: Any) -> None:
        self.calls.append(("new", nodes, proctrack, options))
        self.plan = self
        self.shared_dir = "/shared"

    @classmethod
    def attach(cls) -> RecordingLab:
        if cls.refusal is not None:
            raise cls.refusal
        return cls.__new__(cls)

    for_cleanup = attach

    @classmethod
    def leftovers(cls) -> list[str]:
        return cls.left.pop(0)

    def status(self) -> LabStatus:
        return LabStatus("/run/lab", ("/shared",), "cgroup", "24.11.5", True, self.answers, NODES)

    def env_additions(self) -> dict[str, str]:
        return {"SLURM_CONF": "/run/lab/slurm.conf", "PS1": "it's the lab> "}

    def env(self, user: str | None = None) -> dict[str, str]:
        return dict(os.environ)

    def start_directory(self, user: str | None) -> str:
        return os.getcwd() if user is None else f"/home/{user}"

    def command(self, argv: tuple[str, ...], node: str | None, directory: str, user: str | None) -> list[str]:
        self.calls.append(("command", node, directory, user))
        return list(argv)

    def python_problem(self, user: str) -> str | None:
        return f"{user} cannot run Muster" if user == "bob" else None

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> type[RecordingLab]:
    class Recording(RecordingLab):
        calls: ClassVar[list[tuple[Any, ...]]] = []
        left: ClassVar[list[list[str]]] = []

    monkeypatch.setattr(lab, "Lab", Recording)
    monkeypatch.setattr(lab.signal, "signal", lambda signum, handler: None)
    monkeypatch.setattr(lab, "version_of", lambda prefix: "24.11.5" if prefix else "22.05.8")
    return Recording


@pytest.fixture
def in_lab(invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run `muster lab` with these words; an error of the lab exits."""

    def in_lab(*words: str) -> Finished:
        try:
            return invoke("lab", *words)
        except SystemExit as exit:
            return Finished(int(exit.code or 0), *capsys.readouterr())

    return in_lab


def test_up_passes_its_options_on_and_says_what_is_next(in_lab: Invoke, recording: type[RecordingLab]) -> None:
    done = in_lab(
        "up", "-n", "3", "--proctrack", "pgid", "--conf", "A=1", "--conf", "B=2", "--ipv6", "--topology", "C=3"
    )
    (_, nodes, proctrack, options), started = recording.calls
    assert (nodes, proctrack, started) == (3, "pgid", ("up",))
    assert options["extra_conf"] == ("A=1", "B=2") and options["ipv6"] and options["kill_wait"] == 10
    assert options["topology"] == ("C=3",)
    assert options["slurm_prefix"] is None
    words = "up: 3 nodes (n1 to n3), Slurm 22.05.8, partitions lab and long, proctrack/pgid, "
    assert done.code == 0 and done.out.startswith(words)
    assert 'next: eval "$(muster lab env)"' in done.out and "shared by all nodes: /shared\n" in done.out


@pytest.mark.parametrize("option", ["-N", "--nodes", "-n"])
def test_the_number_of_nodes_is_given_as_for_run_or_by_the_earlier_name(
    option: str, in_lab: Invoke, recording: type[RecordingLab]
) -> None:
    assert in_lab("up", option, "2").code == 0 and recording.calls[0][1] == 2


def test_up_provides_the_release_of_slurm_that_is_asked_for_and_reports_the_progress(
    in_lab: Invoke, recording: type[RecordingLab], monkeypatch: pytest.MonkeyPatch
) -> None:
    def provide(release: str, report: Callable[[str], None]) -> Path:
        report("running apt-get update...")
        return Path("/cache", release)

    monkeypatch.setattr(lab, "provide", provide)
    done = in_lab("up", "--slurm", "24.11")
    assert recording.calls[0][3]["slurm_prefix"] == Path("/cache/24.11")
    assert done.code == 0 and done.err == "muster lab: running apt-get update...\n" and ", Slurm 24.11.5, " in done.out


def test_a_release_that_cannot_be_provided_ends_up_with_the_reason(
    in_lab: Invoke, recording: type[RecordingLab], monkeypatch: pytest.MonkeyPatch
) -> None:
    def provide(release: str, report: Callable[[str], None]) -> Path:
        raise LabUnavailable("another release of Slurm needs mmdebstrap")

    monkeypatch.setattr(lab, "provide", provide)
    done = in_lab("up", "--slurm", "24.11")
    assert (done.code, done.err) == (2, "muster lab: another release of Slurm needs mmdebstrap\n")
    assert recording.calls == []


@pytest.mark.parametrize("words", [["--nodes", "0"], ["--proctrack", "none"], ["--shared", "/nonexistent"]])
def test_up_refuses_what_a_lab_cannot_have(words: list[str], in_lab: Invoke, recording: type[RecordingLab]) -> None:
    assert in_lab("up", *words).code == 2 and recording.calls == []


def test_status_shows_the_state_of_every_node(in_lab: Invoke, recording: type[RecordingLab]) -> None:
    out = in_lab("status").out
    assert out.startswith("lab in /run/lab, Slurm 24.11.5, proctrack/cgroup, slurmctld answers\n")
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert " up " in rows["n1"] and " partitioned " in rows["n2"] and " dead " in rows["n3"] and " - " in rows["n3"]
    recording.answers = False
    assert "slurmctld does not answer" in in_lab("status").out


def test_status_as_json(in_lab: Invoke) -> None:
    shown = json.loads(in_lab("status", "--json").out)
    assert [node["slurm_state"] for node in shown["nodes"]] == ["idle", "down*", "down"]


def test_env_prints_shell_commands_with_quoted_values(in_lab: Invoke) -> None:
    out = in_lab("env").out
    assert out == "export SLURM_CONF=/run/lab/slurm.conf\nexport PS1='it'\"'\"'s the lab> '\n"
    assert json.loads(in_lab("env", "--json").out)["SLURM_CONF"] == "/run/lab/slurm.conf"


@pytest.mark.parametrize(
    ("command", "method", "told"),
    [
        ("kill-node", "kill_node", "n2 is dead\n"),
        ("partition", "partition", "n2 is disconnected\n"),
        ("heal", "heal", "n2 is restored, "),
    ],
)
def test_faults_of_a_node_are_inflicted_and_healed(
    command: str, method: str, told: str, in_lab: Invoke, recording: type[RecordingLab]
) -> None:
    done = in_lab(command, "n2")
    assert done.code == 0 and done.out.startswith(told) and recording.calls == [(method, "n2")]


def test_down_says_whether_there_was_a_lab(in_lab: Invoke, recording: type[RecordingLab]) -> None:
    recording.left = [[]]
    assert in_lab("down").out == "no lab is up\n" and recording.calls == []
    recording.left = [["a process"], []]
    assert in_lab("down").out == "down: nothing left\n" and recording.calls == [("down",)]


def test_down_fails_if_something_is_left(in_lab: Invoke, recording: type[RecordingLab]) -> None:
    recording.left = [["process 7"], ["process 7", "namespace n1"]]
    done = in_lab("down")
    assert (done.code, done.err) == (1, "muster lab: down left behind: process 7; namespace n1\n")


@pytest.mark.parametrize(("error", "code"), [(LabError, 1), (LabUnavailable, 2)])
def test_without_a_lab_every_command_ends_with_one_line(
    error: type[LabError], code: int, in_lab: Invoke, recording: type[RecordingLab]
) -> None:
    recording.refusal = error("no lab is up; `muster lab up` starts one")
    for words in (["status"], ["env"], ["exec", "--", "true"], ["heal", "n1"], ["kill-node", "n1"]):
        done = in_lab(*words)
        assert (done.code, done.out, done.err) == (code, "", "muster lab: no lab is up; `muster lab up` starts one\n")
    error_as_json = json.loads(in_lab("status", "--json").err)["error"]
    assert (error_as_json["exit_code"], error_as_json["hint"]) == (code, "`muster lab up` starts one")


def test_exec_of_an_unknown_command_ends_as_a_shell_does(in_lab: Invoke, recording: type[RecordingLab]) -> None:
    done = in_lab("exec", "--node", "n1", "--", "no-such-command", "--flag")
    assert (done.code, done.err) == (127, "muster lab: no-such-command: command not found\n")
    assert recording.calls == [("command", "n1", os.getcwd(), None)]


def test_exec_as_a_user_starts_in_the_home_directory(in_lab: Invoke, recording: type[RecordingLab]) -> None:
    assert in_lab("exec", "--as", "alice", "--", "no-such-command").code == 127
    assert recording.calls == [("command", None, "/home/alice", "alice")]


def test_up_names_the_login_of_each_user_and_who_cannot_run_muster(in_lab: Invoke) -> None:
    done = in_lab("up", "--user", "alice", "--user", "bob:5002")
    assert "login of alice: muster lab exec --as alice -- bash\n" in done.out
    assert "muster lab: bob cannot run Muster\n" in done.err and "alice cannot" not in done.err


def test_the_help_of_up_names_the_variable_for_a_second_lab(in_lab: Invoke) -> None:
    assert "MUSTER_LAB_DIR" in in_lab("up", "--help").out


def test_env_warns_of_a_python_that_other_users_cannot_run(
    in_lab: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "closed" / "python"
    python.parent.mkdir(mode=0o700)
    python.touch()
    monkeypatch.setattr(lab.sys, "executable", str(python))
    assert f"other users cannot run {python}, because they cannot enter " in in_lab("env").err
    monkeypatch.setattr(lab.sys, "executable", "/usr/bin/env")
    assert in_lab("env").err == ""


def test_exec_replaces_the_process_by_the_command(in_lab: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(lab.os, "execvpe", lambda file, argv, env: replaced.append((file, argv)))
    in_lab("exec", "srun", "-N2", "--", "hostname")
    assert replaced == [("srun", ["srun", "-N2", "--", "hostname"])]
