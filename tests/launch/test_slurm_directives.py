"""The #SBATCH lines as sbatch reads them, and the one srun."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import SpecError
from muster.launch.requeue import NEXT_ATTEMPT
from muster.launch.slurm_directives import directives, step
from muster.spec import JobSpec

SPACE = b" \t\n\v\f\r"


def read_directive(line: str) -> list[str]:
    """The arguments on one line, by the rules of sbatch's own reader (backslash, both quotes, # for comments)."""
    rest = line.encode().removeprefix(b"#SBATCH")
    arguments: list[bytes] = []
    word, quoted, escaped, begun = b"", b"", False, False
    for byte in (bytes([value]) for value in rest):
        if escaped:
            escaped, word = False, word + byte
        elif byte == b"\\":
            escaped = begun = True
        elif quoted:
            quoted, word = (b"", word) if byte == quoted else (quoted, word + byte)
        elif byte in (b'"', b"'"):
            quoted, begun = byte, True
        elif byte == b"#":
            break
        elif byte in SPACE:
            arguments += [word] if begun else []
            word, begun = b"", False
        else:
            word, begun = word + byte, True
    assert not quoted, f"unmatched quote in {line}"
    return [argument.decode() for argument in [*arguments, *([word] if begun else [])]]


def asked(run_dir: str = "/runs/r", workdir: str = "/home/alice", **fields: Any) -> dict[str, str | None]:
    """The options that sbatch would understand, by name."""
    lines = directives(JobSpec(**{"command": ["true"], **fields}), run_dir, workdir)
    words = [read_directive(line) for line in lines]
    assert all(len(each) == 1 for each in words), words
    pairs = [word.removeprefix("--").partition("=") for (word,) in words]
    assert len({name for name, _, _ in pairs}) == len(pairs), "an option is given twice"
    return {name: value if equals else None for name, equals, value in pairs}


# -- the options -----------------------------------------------------------------------------------------------


def test_a_job_is_one_agent_on_each_of_its_nodes() -> None:
    options = asked(nodes=4, name="train")
    assert (options["job-name"], options["nodes"], options["ntasks-per-node"]) == ("train", "4", "1")
    assert options["chdir"] == "/home/alice"


def test_a_range_of_nodes_includes_the_spares_and_the_step_has_all_nodes_of_the_allocation() -> None:
    options = asked(nodes="3-4", spares=2)
    assert options["nodes"] == "5-6" and "ntasks-per-node" not in options  # else Slurm may allocate only 5
    launcher = step(None, None)
    assert "--nodes=$SLURM_JOB_NUM_NODES" in launcher.words
    assert launcher.prepare.endswith("\nexport MUSTER_STEP_NODES=$SLURM_JOB_NUM_NODES")
    assert "MUSTER_STEP_NODES" not in step(4, None).prepare


def test_slurm_keeps_a_job_that_can_do_without_a_node_also_if_it_is_requeued_then() -> None:
    assert "no-kill" in asked(nodes="3-4", requeue_on=["node-fail"])
    assert "no-kill" not in asked(nodes=4, requeue_on=["node-fail"])


def test_a_lost_node_does_not_end_the_job_and_a_requeue_does_not_wipe_its_output() -> None:
    options = asked()
    assert "no-kill" in options and options["no-kill"] is None
    assert options["open-mode"] == "append"


@pytest.mark.parametrize(
    ("fields", "requeue"), [({}, False), ({"requeue_on": ["timeout"]}, True), ({"sbatch": {"requeue": None}}, True)]
)
def test_slurm_requeues_a_job_only_if_asked_to(fields: dict[str, Any], requeue: bool) -> None:
    """Otherwise it would run the driver of a one-node job again after the node has failed."""
    options = asked(**fields)
    assert ("requeue" in options, "no-requeue" in options) == (requeue, not requeue)


def test_nodes_are_exclusive_unless_their_cpus_were_counted() -> None:
    assert "exclusive" in asked() and "cpus-per-task" not in asked()
    counted = asked(cpus_per_node=8)
    assert counted["cpus-per-task"] == "8" and "exclusive" not in counted


def test_exclusive_is_passed_on() -> None:
    assert "exclusive" not in asked(exclusive=False)
    assert asked(exclusive="user")["exclusive"] == "user"
    assert asked(exclusive=True, cpus_per_node=8)["exclusive"] is None


@pytest.mark.parametrize("name", ["exclusive", "open-mode", "output"])
def test_a_default_is_removed_by_an_empty_value(name: str) -> None:
    assert name in asked()
    assert name not in asked(sbatch={name: ""})


def test_the_output_is_in_the_run_directory_unless_the_user_sets_it() -> None:
    assert asked(run_dir="/runs/r")["output"] == "/runs/r/slurm-%j.out"
    assert asked(output="/logs/%x-%j.out")["output"] == "/logs/%x-%j.out"


def test_percent_signs_in_the_run_directory_are_escaped() -> None:
    assert asked(run_dir="/runs/100%j")["output"] == "/runs/100%%j/slurm-%j.out"


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"partition": "gpu"}, "partition", "gpu"),
        ({"time": 30}, "time", "30"),
        ({"gpus_per_node": 8}, "gpus-per-node", "8"),
        ({"mem": "0"}, "mem", "0"),
        ({"gres": "gpu:a100:4"}, "gres", "gpu:a100:4"),
        ({"nodelist": "n[1-4,7]"}, "nodelist", "n[1-4,7]"),
        ({"sbatch": {"requeue": None}}, "requeue", None),
        ({"sbatch": {"mail-type": "END"}}, "mail-type", "END"),
        ({"sbatch": {"container-image": "nvcr.io#nvidia/pytorch"}}, "container-image", "nvcr.io#nvidia/pytorch"),
    ],
)
def test_the_job_s_options_are_passed_on(fields: dict[str, Any], name: str, value: str | None) -> None:
    options = asked(**fields)
    assert name in options and options[name] == value


# -- quoting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "two words",
        'a "quote"',
        "it's",
        "back\\slash",
        "trailing\\",
        "a #comment",
        "#",
        "$(id)",
        "grün",
        "a=b",
        " x",
    ],
)
def test_a_value_is_read_by_sbatch_as_it_was_written(text: str) -> None:
    assert asked(comment=text)["comment"] == text


@given(field=st.sampled_from(["name", "comment", "partition", "output", "dependency"]), text=st.text(max_size=64))
def test_any_value_is_refused_or_is_one_word_on_one_line(field: str, text: str) -> None:
    try:
        options = asked(**{field: text})
    except SpecError:
        return
    assert options["job-name" if field == "name" else field] == text


PATHS = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60).map("/".__add__)


@given(run_dir=PATHS, workdir=PATHS)
def test_any_directory_is_one_word_on_one_line(run_dir: str, workdir: str) -> None:
    options = asked(run_dir=run_dir, workdir=workdir)
    assert options["chdir"] == workdir
    assert (options["output"] or "").replace("%%", "%") == f"{run_dir}/slurm-%j.out"


# -- the one srun -----------------------------------------------------------------------------------------------


def evaluated(words: list[str] | tuple[str, ...], **env: str) -> list[str]:
    """Return the launcher's arguments as bash would pass them."""
    script = f"printf '%s\\0' {' '.join(words)}"
    done = subprocess.run(
        ["bash", "-uc", script], env={"PATH": os.environ["PATH"], **env}, capture_output=True, check=True
    )
    return done.stdout.decode().removesuffix("\0").split("\0")


@pytest.mark.parametrize("nodes", [1, 4, 64])
def test_there_is_one_step_whatever_the_number_of_nodes(nodes: int) -> None:
    words = evaluated(list(step(nodes, 8).words))
    assert words[0] == "srun" and words.count("srun") == 1
    assert {f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpus-per-task=8"} <= set(words)
    assert all(word.startswith("--") for word in words[1:])


@pytest.mark.parametrize(
    ("allocated", "cpus"), [("72", 72), ("72(x2)", 72), ("72(x2),36", 36), ("8,128(x3),16", 8), ("100,20(x4)", 20)]
)
def test_without_a_count_a_task_gets_the_cpus_that_every_node_has(allocated: str, cpus: int) -> None:
    words = evaluated(list(step(4, None).words), SLURM_JOB_CPUS_PER_NODE=allocated)
    assert f"--cpus-per-task={cpus}" in words


def test_a_lost_or_failed_task_does_not_end_the_others() -> None:
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= set(step(4, 8).words)


def test_the_step_can_start_inside_another_step(tmp_path: Path) -> None:
    """As in `srun --pty bash`: its variables would shrink the step, its CPUs would be waited for."""
    launcher = step(2, 8)
    assert "--overlap" in launcher.words
    step_scoped = ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_NODES", "SLURM_CPU_BIND_LIST", "SLURM_NTASKS"]
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_NODELIST": "n[1-2]", **dict.fromkeys(step_scoped, "1")}
    script = f"attempt={tmp_path}; scontrol() {{ :; }}\n{launcher.prepare}\nset"
    done = subprocess.run(["bash", "-uc", script], env=env, capture_output=True, text=True, check=True)
    left = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "SLURM_JOB_NODELIST" in left
    assert not left & set(step_scoped)


def test_an_attempt_is_a_new_start_of_a_submitted_job_and_always_the_first_elsewhere() -> None:
    assert step(2, 8).attempt == NEXT_ATTEMPT
    assert step(2, 8, attempt="0").attempt == "0"
