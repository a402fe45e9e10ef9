"""The driver gets secrets from --env, the command or the environment, and Muster never displays them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import TAG
from tests.running import MusterCommand, wait_for

from muster.cli.argv_redaction import redacted_cmdline

BY_ENV, IN_COMMAND, INHERITED = "env-9f31c2", "word-77ab10", "shell-c0ffee"
SECRETS = (BY_ENV, IN_COMMAND, INHERITED)
DRIVER = """
import os, sys
print("ready", flush=True)
sys.stdin = open("go")  # a pipe: waits for its writer
assert os.environ["API_KEY"] == "env-9f31c2" and sys.argv[2] == "word-77ab10"
sys.exit("cannot log in with " + os.environ["API_KEY"])
"""


def argv_redaction() -> Iterator[list[str]]:
    """Arguments of every process that this test started, but the driver's."""
    tag = f"{TAG}={os.environ[TAG]}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and tag in (entry / "environ").read_bytes():
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[1:2] != ["driver.py"]:
                    yield words
        except OSError:
            continue


@pytest.fixture
def failed_run(muster: MusterCommand) -> tuple[MusterCommand, str, list[list[str]]]:
    """A run that used all three secrets and whose driver failed over one; what it printed, and its processes."""
    os.mkfifo(muster.cwd / "go")
    (muster.cwd / "driver.py").write_text(DRIVER)
    muster.env["WANDB_API_KEY"] = INHERITED
    command = ["python", "driver.py", "--token", IN_COMMAND]
    process = muster.start(*muster.local_args("--env", f"API_KEY={BY_ENV}", "--json", "--", *command))
    muster.wait_for_driver("ready")
    listed = list(argv_redaction())
    (muster.cwd / "go").write_text("")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1 and "ready" in out, err
    return muster, out + err, listed


def test_no_secret_is_shown_by_anything_but_the_driver_itself(
    failed_run: tuple[MusterCommand, str, list[list[str]]],
) -> None:
    muster, printed, listed = failed_run
    assert any("muster.cli.main" in words for words in listed) and len(listed) >= 4
    run = muster.run_dir()
    shown = {"process list": str(listed)}
    shown |= {command: muster(*command.split()).stdout for command in ("status", "status --json", "runs")}
    shown |= {str(path): path.read_text(errors="replace") for path in run.rglob("*") if _may_be_shared(path)}
    shown["what muster run printed, without the driver's output"] = "".join(
        line for line in printed.splitlines() if '"event": "output"' not in line
    )
    assert '"event": "driver_start"' in shown[str(run / "attempt-0" / "events-0.jsonl")]
    assert "cannot log in with ***" in shown["status"]
    assert [(where, secret) for where, text in shown.items() for secret in SECRETS if secret in text] == []
    assert (run / "job.json").stat().st_mode & 0o777 == 0o600


def _may_be_shared(path: Path) -> bool:
    """Whether the file must hold no secret although it is private: users send such files to each other."""
    names = ("steps.log", "phases.log", "status-0.json", "outcome", "submission.json")
    return path.is_file() and (path.name in names or path.suffix in (".jsonl", ".html", ".prom"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--setup", "export HF_TOKEN=abcdef"),
        ("--sbatch", "export=ALL,HF_TOKEN=abcdef"),
        ("--comment", "key-of-the-run"),
    ],
)
def test_a_secret_that_would_stand_in_the_script_is_refused(muster: MusterCommand, option: str, value: str) -> None:
    done = muster.local("--env", "API_KEY=key-of-the-run", option, value, "--dry-run", "--", "true")
    assert done.returncode == 2 and not muster.run_dirs()
    assert f"{option}" in done.stderr and "looks like a secret" in done.stderr and "abcdef" not in done.stderr


def test_a_dry_run_shows_no_secret_and_a_reference_to_one_is_fine(muster: MusterCommand) -> None:
    setup = "export HF_TOKEN=$(cat ~/.hf)"
    words = ["--env", f"API_KEY={BY_ENV}", "--setup", setup, "--dry-run", "--", "python", f"--api-key={IN_COMMAND}"]
    done = muster.local(*words)
    assert done.returncode == 0 and setup in done.stdout
    assert BY_ENV not in done.stdout + done.stderr and IN_COMMAND not in done.stdout + done.stderr


def test_in_the_argv_redaction_only_secrets_are_overwritten_and_the_length_stays() -> None:
    words = "muster\0run\0--env\0API_KEY=köstlich\0--\0x\0--token\0abcdef\0--password=p\0".encode()
    shown = b"muster\0run\0--env\0API_KEY=*********\0--\0x\0--token\0******\0--password=*\0"
    assert redacted_cmdline(words) == shown
    assert redacted_cmdline(b"") == b""


def test_a_session_s_command_is_not_in_the_argv_redaction_but_its_own(muster: MusterCommand) -> None:
    assert muster("up", "--backend", "local", "--no-ray", "--python", muster.python).returncode == 0
    hold = f"touch $MUSTER_OUTPUT_DIR/on; sleep 1000 # --password {IN_COMMAND}"
    process = muster.start("exec", "--", "bash", "-c", hold)
    wait_for("the command", (muster.run_dir() / "output" / "on").exists)
    listed = [words for words in argv_redaction() if words[:2] != ["bash", "-c"]]
    assert muster("down").returncode == 0
    process.communicate(timeout=180)
    assert any("attach" in words for words in listed)
    assert IN_COMMAND not in str(listed)
