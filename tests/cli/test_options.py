"""The flags of `muster run`: generated from the model, distinguished from defaults, refused in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from muster.cli.errors import run_command_line
from muster.cli.options import COMMON, GroupedOption, JobCommand, job_options, spell_out_bare
from muster.spec import JobSpec, load_job
from muster.spec.flags import long_flag
from muster.spec.model import FLAGS


@dataclass
class Seen:
    """What a `muster run` was given: the job file, the flags and the job they make."""

    file: Path | None
    flags: dict[str, Any]
    spec: JobSpec
    detach: bool


@pytest.fixture
def seen() -> list[Seen]:
    return []


@pytest.fixture
def cli(seen: list[Seen]) -> click.Group:
    """A command line with a `run` as small as can be, and a command that has no job."""

    @click.group()
    def group() -> None:
        """Muster."""

    @group.command(cls=JobCommand)
    @job_options
    @click.option("--detach", is_flag=True, help="Do not wait.", cls=GroupedOption, group="Following")
    def run(file: Path | None, flags: dict[str, Any], detach: bool) -> int:
        """Run COMMAND on a gang of nodes."""
        seen.append(Seen(file, flags, load_job(file, flags), detach))
        return 7

    @group.command()
    @click.option("--json", "as_json", is_flag=True)
    def status(as_json: bool) -> None:
        """Say how a run is."""

    return group


@pytest.fixture
def run(cli: click.Group, seen: list[Seen]) -> Callable[..., Seen]:
    """Run `muster run` with these words and return what it saw."""

    def run(*words: str) -> Seen:
        assert run_command_line(cli, ["run", *words]) == 7
        return seen.pop()

    return run


@pytest.fixture
def refused(cli: click.Group, seen: list[Seen], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `muster` with these words, which it refuses with code 2 and one line; return the line."""

    def refused(*words: str) -> str:
        assert run_command_line(cli, words) == 2
        assert not seen
        out, err = capsys.readouterr()
        assert not out and err.startswith("muster: error: ") and err.count("\n") == 1, (out, err)
        return err.removeprefix("muster: error: ").rstrip("\n")

    return refused


def test_every_field_has_its_flag_and_every_flag_its_field(cli: click.Group) -> None:
    run = cli.commands["run"]
    flags = {param.name: param for param in run.params if param.name not in ("file", "profile", "detach")}

    assert set(flags) == {name for name, flag in FLAGS.items() if not flag.file_only}
    assert set(FLAGS) == set(JobSpec.model_fields)
    for name, param in flags.items():
        flag = FLAGS[str(name)]
        if not flag.argument:
            assert isinstance(param, GroupedOption) and param.group == flag.group
            assert {long_flag(str(name)), *([flag.short] if flag.short else [])} <= set(param.opts)


def test_no_two_flags_share_a_spelling(cli: click.Group) -> None:
    spellings = [word for param in cli.commands["run"].params for word in (*param.opts, *param.secondary_opts)]

    assert len(spellings) == len(set(spellings))


def test_only_given_flags_are_passed_on(run: Callable[..., Seen]) -> None:
    assert run("true").flags == {"command": ["true"]}
    assert run("-N", "1", "--ray", "true").flags == {"command": ["true"], "nodes": "1", "ray": True}


def test_flags_at_their_default_do_not_overrule_the_file(run: Callable[..., Seen], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: [a]\nnodes: 5\nray: false\ndashboard: true\nenv: {A: x}\nbackend: local\n")

    spec = run("-f", str(file), "-p", "gpu").spec

    assert (spec.command, spec.nodes, spec.ray, spec.dashboard) == (["a"], 5, False, True)
    assert (spec.env, spec.backend, spec.partition) == ({"A": "x"}, "local", "gpu")


def test_sbatch_short_forms_and_aliases_are_understood(run: Callable[..., Seen]) -> None:
    words = "-N2 -J x -p p -A a -q q -t 1:00:00 -w n1 -x n2 -C c -d singleton -o out true"
    spec = run(*words.split()).spec

    assert (spec.nodes, spec.name, spec.partition, spec.account, spec.qos) == (2, "x", "p", "a", "q")
    assert (spec.time, spec.nodelist, spec.exclude, spec.constraint) == ("1:00:00", "n1", "n2", "c")
    assert (spec.dependency, spec.output) == ("singleton", "out")
    assert run("--job-name", "y", "true").spec.name == "y"


def test_ray_s_arguments_resources_and_labels_may_be_repeated(run: Callable[..., Seen], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: [a]\nray_start_arg: [--verbose]\nray_resource: {disk: 1, net: 1}\n")
    words = "--ray-start-arg=--node-name=a --ray-start-arg --no-monitor --ray-resource disk=2 --ray-label a=b"
    spec = run("-f", str(file), *words.split(), "--ray-label=c=d").spec
    assert spec.ray_start_arg == ["--node-name=a", "--no-monitor"]
    assert (spec.ray_resource, spec.ray_label) == ({"disk": 2, "net": 1}, {"a": "b", "c": "d"})


def test_an_argument_of_ray_start_that_muster_sets_is_refused(refused: Callable[..., str]) -> None:
    line = refused("run", "--ray-start-arg=--num-cpus=4", "true")
    assert "--ray-start-arg" in line and "is set by Muster: use --cpus-per-node" in line
    assert "--ray-resource" in refused("run", "--ray-resource", "disk", "true")


@pytest.mark.parametrize(
    "words",
    [
        ["--", "python", "x.py", "--nodes", "3", "--", "-N", "4"],
        ["python", "x.py", "--nodes", "3", "--", "-N", "4"],
    ],
)
def test_options_of_the_command_are_passed_on_with_and_without_dashes(
    run: Callable[..., Seen], words: list[str]
) -> None:
    seen = run("-N", "2", "--detach", *words)

    assert seen.flags == {"command": ["python", "x.py", "--nodes", "3", "--", "-N", "4"], "nodes": "2"}
    assert seen.detach


def test_words_of_the_command_arrive_as_they_are(run: Callable[..., Seen]) -> None:
    words = ["bash", "-c", "echo \"$(date)\" 'a'\n`b`", "", "--exclusive", "*", "ü"]

    assert run("--", *words).spec.command == words


def test_env_and_sbatch_may_be_repeated(run: Callable[..., Seen]) -> None:
    words = [
        "--env",
        "A=1",
        "--env",
        "B=x=y",
        "--env",
        "C=",
        "--sbatch",
        "mail-type=END",
        "--sbatch",
        "requeue",
    ]
    spec = run(*words, "--sbatch", "output=", "true").spec

    assert spec.env == {"A": "1", "B": "x=y", "C": ""}
    assert spec.sbatch == {"mail-type": "END", "requeue": None, "output": ""}


@pytest.mark.parametrize(
    ("words", "exclusive"),
    [
        (["--exclusive", "python"], True),
        (["--exclusive", "--", "python"], True),
        (["--exclusive=user", "python"], "user"),
        (["-N", "2", "--exclusive", "-p", "x", "python"], True),
        (["python"], None),
    ],
)
def test_exclusive_takes_a_value_only_after_an_equals_sign(
    run: Callable[..., Seen], words: list[str], exclusive: Any
) -> None:
    spec = run(*words).spec

    assert (spec.exclusive, spec.command) == (exclusive, ["python"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--bare", "x"], ["--bare=true", "x"]),
        (["x", "--bare"], ["x", "--bare"]),
        (["--", "--bare"], ["--", "--bare"]),
        (["--value", "--bare", "--bare"], ["--value", "--bare", "--bare=true"]),
        (["-v", "--bare", "--bare"], ["-v", "--bare", "--bare=true"]),
        (["-v1", "--bare"], ["-v1", "--bare=true"]),
        (["-qv", "--bare"], ["-qv", "--bare"]),
        (["--value=1", "--bare=x", "--bare"], ["--value=1", "--bare=x", "--bare=true"]),
        (["--value"], ["--value"]),
        (["-", "--bare"], ["-", "--bare"]),
        ([], []),
    ],
)
def test_a_bare_flag_is_spelt_out_only_where_it_is_an_option(words: list[str], expected: list[str]) -> None:
    assert spell_out_bare(words, {"--bare": "true"}, {"--value", "-v"}) == expected


def test_help_lists_flags_by_group_with_defaults_and_examples(
    cli: click.Group, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(cli, ["run", "--help-all"]) == 0
    text = capsys.readouterr().out
    lines = [line.strip() for line in text.splitlines()]

    headings = [
        "Job",
        "Ray",
        "Environment",
        "Container",
        "Deadlines",
        "Slurm",
        "Restarts",
        "Spares",
        "Following",
        "Other",
    ]
    assert [line for line in lines if line.rstrip(":") in headings and line.endswith(":")] == [
        f"{h}:" for h in headings
    ]
    assert all(long_flag(name) in text for name, flag in FLAGS.items() if not (flag.argument or flag.file_only))
    assert "--exclusive[=user|mcs|topo]" in text and "[default: 600s]" in text
    assert "muster run -N 4 -- python train.py --lr 3e-4" in lines


def test_the_short_help_has_common_flags_by_group_examples_and_the_way_to_all_others(
    cli: click.Group, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(cli, ["run", "--help"]) == 0
    short = capsys.readouterr().out
    assert run_command_line(cli, ["run", "--help-all"]) == 0
    everything = capsys.readouterr().out

    named = {name for name, flag in FLAGS.items() if re.search(rf"{long_flag(name)}\b(?!-)", short)}
    assert COMMON - {"file", "profile"} <= named and len(named) < len(FLAGS) / 2
    assert "Slurm:" in short and "muster run -N 4 -- python train.py" in short and "--detach" in short
    hidden = (
        len(FLAGS) - len(COMMON - {"file", "profile"}) - len([flag for flag in FLAGS.values() if flag.file_only]) - 1
    )
    assert f"Show also the other {hidden} options, and exit." in short
    assert len(short.splitlines()) < len(everything.splitlines()) / 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--node", "3", "x"], "unknown option --node; did you mean --nodes, --nodelist, --min-nodes? any other"),
        (["--zzz", "x"], "unknown option --zzz; any other sbatch option: --sbatch KEY=VALUE"),
        (["--mail-type=END", "x"], "unknown option --mail-type; it is an sbatch option: --sbatch mail-type="),
        (["--hold", "x"], "unknown option --hold; it is an sbatch option: --sbatch hold"),
        (["--ntasks=4", "x"], "unknown option --ntasks: Muster runs one agent on every node"),
        (["-c", "4", "x"], "unknown option -c: Muster runs one task per node, which has all CPUs of the job; use"),
        (["--no\nsuch", "x"], "unknown option --no\\nsuch"),
        (["--nodes"], "Option '--nodes' requires an argument."),
        (["--nodes", "0", "x"], "--nodes: '0' is not valid; allowed: a whole number, 1 or more"),
        (["--nodes", "-1", "x"], "--nodes: '-1' is not valid; allowed: a whole number, 1 or more"),
        (["--nodes", "", "x"], "--nodes: '' is not valid; allowed: a whole number, 1 or more"),
        (["-p", "a\nb", "x"], "--partition: 'a\\nb' contains a newline or a control character"),
        (["--env", "A", "x"], "--env: 'A' is not valid; allowed: NAME=VALUE"),
        (["--sbatch", "=x", "x"], "--sbatch: '' is not the name of an sbatch option"),
        (["--sbatch", "a\nb=x", "x"], "--sbatch a\\nb: 'a\\nb' is not the name of an sbatch option"),
        (["--sbatch", "wrap=x", "x"], "--sbatch wrap: cannot be set here: Muster writes the batch script"),
        (["-f", "/nonexistent.yaml"], "/nonexistent.yaml: cannot be read: No such file or directory"),
        (["--"], "no command to run"),
        ([], "no command to run"),
    ],
)
def test_bad_input_is_refused_in_one_line_with_code_2(refused: Callable[..., str], words: list[str], told: str) -> None:
    assert refused("run", *words).startswith(told)


def test_a_command_without_a_job_offers_no_sbatch_options(refused: Callable[..., str]) -> None:
    assert refused("status", "--jsn") == "unknown option --jsn; did you mean --json?"
    assert refused("statsu").startswith("No such command 'statsu'.")


def test_slurm_s_options_for_tasks_and_gpus_are_answered_with_muster_s(refused: Callable[..., str]) -> None:
    assert "--procs-per-node" in refused("run", "--ntasks-per-node", "8", "x")
    for option in ("--gpus", "-G", "--gpus-per-task"):
        told = refused("run", option, "8", "x")
        assert told.startswith(f"unknown option {option}; use --gpus-per-node, or the sbatch option: --sbatch gpus")


def test_several_problems_are_one_line_each(cli: click.Group, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(cli, ["run", "-N", "0", "-t", "soon", "x"]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[2].strip() for line in lines] == ["--nodes", "--time"]


def test_muster_without_arguments_shows_its_help(cli: click.Group, capsys: pytest.CaptureFixture[str]) -> None:
    run_command_line(cli, [])

    assert "Commands:" in "".join(capsys.readouterr())


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def wait() -> None:
        raise KeyboardInterrupt

    assert run_command_line(wait, []) == 130
