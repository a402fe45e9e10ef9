"""`muster completion`: the code of each shell, its installation, and what it completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from tests.cli.invocation import Invoke, StartRun

from muster.cli.completion import VARIABLE
from muster.cli.main import COMMANDS, cli


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory of a user of bash."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def complete(*words: str) -> list[str]:
    """Return the completions of the last word."""
    shell = ShellComplete(cli, {}, "muster", VARIABLE)
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_commands_are_completed_without_importing_them() -> None:
    assert complete("") == sorted(COMMANDS) and complete("sta") == ["status"] and "ps" not in complete("")
    code = (
        "import sys; from muster.cli.main import cli; from click.shell_completion import ShellComplete;"
        f"ShellComplete(cli, {{}}, 'muster', '{VARIABLE}').get_completions([], 'r');"
        "print(sorted(name for name in sys.modules if name.startswith('muster.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "muster.cli.errors" in done.stdout and "muster.cli.run" not in done.stdout


def test_options_of_a_command_are_completed() -> None:
    assert complete("run", "--gpus") == ["--gpus-per-node"]
    assert complete("status", "--j") == ["--json"]


def test_runs_are_completed_newest_first(start_run: StartRun) -> None:
    for name in ("train-1", "train-2", "other"):
        start_run(name)
    assert complete("status", "train") == ["train-2", "train-1"] and complete("logs", "x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_of_each_shell_asks_muster(shell: str, invoke: Invoke) -> None:
    done = invoke("completion", shell)
    assert (done.code, done.err) == (0, "") and f"{VARIABLE}={shell}_complete" in done.out


def test_the_shell_of_the_user_is_the_default(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("completion").out == invoke("completion", "bash").out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = invoke("completion")
    assert done.code == 2 and "$SHELL is tcsh; give a shell: muster completion bash|zsh|fish" in done.err


@pytest.mark.parametrize(
    ("shell", "written"),
    [
        ("bash", [".local/share/muster/completion.bash", ".bashrc"]),
        ("zsh", [".local/share/muster/completion.zsh", ".zshrc"]),
        ("fish", [".config/fish/completions/muster.fish"]),
    ],
)
def test_it_is_installed_once(shell: str, written: list[str], home: Path, invoke: Invoke) -> None:
    (home / ".bashrc").write_text("alias l=ls")
    first = invoke("completion", shell, "--install")
    assert first.out.splitlines()[:-1] == [f"written: {home / name}" for name in written]
    before = [(home / name).read_text() for name in written]
    assert VARIABLE in before[0]
    assert invoke("completion", shell, "--install").code == 0
    assert [(home / name).read_text() for name in written] == before
    assert (home / ".bashrc").read_text().startswith("alias l=ls")


def test_a_file_that_cannot_be_written_is_named(home: Path, invoke: Invoke) -> None:
    (home / ".local").write_text("a file")
    done = invoke("completion", "--install")
    assert done.code == 1 and f"{home}/.local" in done.err and "cannot be written" in done.err


def test_a_new_shell_completes(home: Path, invoke: Invoke) -> None:
    invoke("completion", "--install")
    bin = Path(sys.executable).parent
    script = 'COMP_WORDS=(muster stat); COMP_CWORD=1; _muster_completion muster; echo "${COMPREPLY[@]}"'
    env = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}"}
    command = ["bash", "--rcfile", str(home / ".bashrc"), "-i", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
    assert done.stdout.split() == ["status"], done.stderr
