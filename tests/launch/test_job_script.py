"""The job script as text: equal to the golden file, valid bash, and safe for any external values."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from shlex import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launch.golden_scripts import SPEC, check_bash, check_golden, fix_details

from muster.launch.job_script import Launcher, PreludeArguments, render
from muster.launch.plan import new_run_id, plan_run
from muster.launch.requeue import NEXT_ATTEMPT
from muster.launch.target import Target

PLACES = {"sbatch": Target("sbatch", 4), "allocation": Target("allocation", 2), "local": Target("local", 3)}
AGAIN = SPEC.model_copy(update={"requeue_on": ["timeout", "node-fail", "exit=75"], "chain": 3})
SCRIPTS = (*PLACES, "restarts")

# Bash reads the script as bytes, and file names have no NUL; lone surrogates (Cs) are not text.
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40)
MARKS = st.sampled_from(
    ["__RUN__", "__SETUP__", "__PRELUDE__", "$(touch pwned)", "`touch pwned`", "';touch pwned;'", '"', "\\"]
)
HOSTILE = st.lists(TEXT | MARKS, max_size=4).map("".join)
FILE_NAME = HOSTILE.map(lambda name: "d" + name.replace("/", "_")[:50])


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The script of each place, for a job whose every detail is fixed."""
    fix_details(monkeypatch)
    texts = {kind: plan_run(SPEC, place, Path("/")).script for kind, place in PLACES.items()}
    return {**texts, "restarts": plan_run(AGAIN, PLACES["sbatch"], Path("/")).script}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_script_is_the_one_that_was_reviewed(scripts: dict[str, str], kind: str) -> None:
    check_golden(kind, scripts[kind])


@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_script_is_valid_bash(scripts: dict[str, str], kind: str) -> None:
    check_bash(scripts[kind])


def test_only_a_submitted_job_has_directives(scripts: dict[str, str]) -> None:
    assert {kind: "#SBATCH" in text for kind, text in scripts.items()} == {
        "sbatch": True,
        "restarts": True,
        "allocation": False,
        "local": False,
    }


def test_one_launcher_starts_all_nodes(scripts: dict[str, str]) -> None:
    for kind in ("sbatch", "allocation"):
        lines = [line for line in scripts[kind].splitlines() if not line.startswith("#")]
        assert sum(line.lstrip().startswith(("srun", "setsid srun")) for line in lines) == 1


# -- values from outside never reach a shell unquoted -----------------------------------------------------------


def launched(script: str, directory: str) -> list[str]:
    """Run the script up to the launcher, which lists its arguments, and return them."""
    start, mark, _ = script.partition("launcher=$!")
    assert mark
    done = subprocess.run(
        ["bash"], input=f"{start}\nwait\n}}\n".encode(), cwd=directory, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    (log,) = Path(directory).glob("*/attempt-0/steps.log")
    return log.read_bytes().decode().removesuffix("\0").split("\0")


LISTING = Launcher("local", ["printf", quote(r"%s\0")], "MUSTER_TASK", "MUSTER_NODE")


@settings(max_examples=60, deadline=None)
@given(name=HOSTILE, directory=FILE_NAME, python=HOSTILE, setup=HOSTILE, check=HOSTILE)
def test_every_value_arrives_at_the_launcher_as_it_was_given(
    name: str, directory: str, python: str, setup: str, check: str
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run_dir, run_id = f"{scratch}/{directory}", new_run_id(name)
        words = launched(render(run_dir, run_id, PreludeArguments(python, setup, check), LISTING, []), scratch)
        attempt = f"{run_dir}/attempt-0"
        assert words[:2] == ["bash", "-c"]
        assert words[3:] == ["muster", attempt, f"{run_id} 0", python, setup, run_dir, check]
        assert os.listdir(scratch) == [directory]  # nothing was executed on the way
        assert sorted(os.listdir(attempt)) == ["canary", "logs", "nodes", "phases.log", "reserve", "steps.log"]


@given(name=HOSTILE)
def test_a_run_id_is_plain_text_for_any_job_name(name: str) -> None:
    run_id = new_run_id(name)
    assert quote(run_id) == run_id
    assert run_id[0] not in "-." and "/" not in run_id
    assert run_id.isascii()


def test_every_start_of_a_job_gets_a_new_attempt(tmp_path: Path) -> None:
    launcher = Launcher("slurm", ["true"], "SLURM_PROCID", "SLURMD_NODENAME", attempt=NEXT_ATTEMPT)
    script = render(f"{tmp_path}/r", "r", PreludeArguments("python3"), launcher, [])
    (tmp_path / "r").mkdir()
    for number in range(3):
        assert not (tmp_path / "r" / f"attempt-{number}").exists()
        subprocess.run(["bash"], input=script.encode(), timeout=60)
        assert (tmp_path / "r" / f"attempt-{number}" / "outcome").exists()


def test_a_missing_run_directory_ends_the_job_at_once(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("in the way")
    launcher = Launcher("slurm", ["true"], "SLURM_PROCID", "SLURMD_NODENAME", attempt=NEXT_ATTEMPT)
    script = render(f"{tmp_path}/r", "r", PreludeArguments("python3"), launcher, [])
    assert subprocess.run(["bash"], input=script.encode(), capture_output=True, timeout=60).returncode == 125


@pytest.mark.parametrize(
    ("surplus", "succession", "condition"),
    [(False, False, "leader_ended ''"), (True, False, "! has lead-1.json && leader_ended ''"), (True, True, "false")],
)
def test_a_run_ends_with_its_leader_s_task_unless_another_node_leads_it(
    tmp_path: Path, surplus: bool, succession: bool, condition: str
) -> None:
    """Another node can replace the first leader before the driver ran, under every policy."""
    arguments = (f"{tmp_path}/r", "r", PreludeArguments("python3"), Launcher("local", ["true"], "R", "H"), [])
    script = render(*arguments, surplus=surplus, succession=succession)
    assert f"      {condition} || continue\n" in script
    check_bash(script)
