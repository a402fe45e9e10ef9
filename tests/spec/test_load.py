"""Loading a job from a file and flags: precedence, and errors with their origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import SettingsWarning
from muster.spec import JobSpec, SpecError, load_job


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for a job file that errors name as `job.yaml`."""
    monkeypatch.chdir(tmp_path)
    return Path("job.yaml")


def load(path: Path, text: str, **flags: Any) -> JobSpec:
    path.write_text(text)
    return load_job(path, flags)


def problems(path: Path | None, text: str = "", **flags: Any) -> list[str]:
    if path is not None:
        path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_job(path, flags)
    return str(caught.value).splitlines()


def problem(path: Path | None, text: str = "", **flags: Any) -> str:
    """The one line in which this job is refused."""
    lines = problems(path, text, **flags)
    assert len(lines) == 1, lines
    return lines[0]


def test_flags_without_a_file_make_a_job() -> None:
    spec = load_job(None, {"command": ["python", "x.py"], "nodes": "4", "stop_grace": "1m"})

    assert (spec.command, spec.nodes, spec.stop_grace) == (["python", "x.py"], 4, 60)


def test_flags_win_over_the_file_field_by_field(job_file: Path) -> None:
    spec = load(job_file, "command: [a]\nnodes: 2\npartition: cpu\nray: false", nodes="8", ray=True)

    assert (spec.command, spec.nodes, spec.partition, spec.ray) == (["a"], 8, "cpu", True)


def test_a_command_of_the_command_line_replaces_the_one_of_the_file(job_file: Path) -> None:
    assert load(job_file, "command: python a.py", command=["b"]).command == ["b"]


def test_env_and_sbatch_merge_entry_by_entry(job_file: Path) -> None:
    spec = load(
        job_file,
        "command: [a]\nenv: {A: 1, B: 2}\nsbatch: {mail-type: END, wckey: w}",
        env={"B": "3", "C": "4"},
        sbatch={"mail_type": "FAIL"},
    )

    assert spec.env == {"A": "1", "B": "3", "C": "4"}
    assert spec.sbatch == {"mail-type": "FAIL", "wckey": "w"}


def test_either_spelling_of_an_sbatch_option_on_the_command_line_wins_over_either_in_the_file(
    job_file: Path,
) -> None:
    assert load(job_file, "command: a\npartition: cpu", sbatch={"partition": "gpu"}).partition == "gpu"
    assert load(job_file, "command: a\nsbatch: {partition: cpu}", partition="gpu").partition == "gpu"


def test_a_removal_on_the_command_line_overrides_the_file_and_vice_versa(job_file: Path) -> None:
    removed = load(job_file, "command: a\npartition: cpu", sbatch={"partition": ""})
    restored = load(job_file, "command: a\nsbatch: {output: ''}", output="x.log")

    assert (removed.partition, removed.sbatch) == (None, {"partition": ""})
    assert (restored.output, restored.sbatch) == ("x.log", {})


def test_only_given_fields_count_as_given(job_file: Path) -> None:
    assert not load(job_file, "command: a").nodes_given
    assert load(job_file, "command: a\nnodes: 1").nodes_given


def test_scalars_are_kept_as_written(job_file: Path) -> None:
    spec = load(
        job_file,
        """
        command: [python, train.py, --lr, 0.10, --flag, no, --at, 2024-01-01, --mode, 0o17]
        name: 007
        time: 1:30:00
        account: 1e3
        env: {VERSION: 1.10, SWITCH: on, EMPTY: ''}
        """,
    )

    assert spec.command[3::2] == ["0.10", "no", "2024-01-01", "0o17"]
    assert (spec.name, spec.time, spec.account) == ("007", "1:30:00", "1e3")
    assert spec.env == {"VERSION": "1.10", "SWITCH": "on", "EMPTY": ""}


def test_numbers_and_booleans_are_converted_by_the_field_s_type(job_file: Path) -> None:
    spec = load(job_file, "command: a\nnodes: '3'\nray: false\nexclusive: true\ngather_timeout: 2.5m\nmem: 0")

    assert (spec.nodes, spec.ray, spec.exclusive, spec.gather_timeout, spec.mem) == (3, False, True, 150, "0")


def test_the_file_accepts_flag_spellings_aliases_anchors_and_empty_sections(job_file: Path) -> None:
    spec = load(
        job_file,
        "job-name: x\ncpus-per-node: 2\npartition:\nenv:\nsbatch:\n  requeue:\ncommand: |\n  cd a\n  python b.py\n",
    )
    merged = load(job_file, "env: {<<: &base {A: x}, B: y}\ncommand: [a]")

    assert (spec.name, spec.cpus_per_node, spec.partition, spec.env) == ("x", 2, None, {})
    assert spec.sbatch == {"requeue": None}
    assert spec.command == ["bash", "-c", "cd a\npython b.py\n"]
    assert merged.env == {"A": "x", "B": "y"}


def test_an_unknown_field_is_refused_with_its_line_and_the_nearest_one(job_file: Path) -> None:
    told = problem(job_file, "command: a\nnodez: 3")

    assert told == "job.yaml:2: unknown field 'nodez'; did you mean nodes, nodelist?"


def test_an_unknown_field_of_the_python_api_is_refused_with_the_nearest_one() -> None:
    told = problem(None, command=["a"], nodez=2)

    assert told == "unknown field 'nodez'; did you mean nodes, nodelist?"


def test_a_conflict_of_fields_names_the_flag_or_the_file_as_written(job_file: Path) -> None:
    flag = problem(None, command=["a"], nodes="4", segment="3")
    in_file = problem(job_file, "command: a\non_node_loss: replace")
    service = problem(job_file, "command: a\nnodes: 1\nservices: {s: {command: x, scope: 2}}")

    assert flag.startswith("--segment: 4 nodes are not a multiple of")
    assert in_file.startswith("job.yaml:2: on_node_loss: replace needs a spare node")
    assert service == "job.yaml:3: services.s.scope: needs 2 nodes, but the job has 1"


@pytest.mark.parametrize("field", ["container_mounts", "container_workdir", "container_args"])
def test_an_option_of_a_container_without_an_image_is_refused(field: str, job_file: Path) -> None:
    flag = problem(None, command=["a"], **{field: "/a"})
    in_file = problem(job_file, f"command: a\n{field}: /a")

    assert flag.endswith("has no effect without an image; give --container-image (field container_image), or remove it")
    assert flag.startswith("--container-") and in_file.startswith(f"job.yaml:2: {field}: has no effect")
    assert getattr(load(job_file, f"command: a\n{field}: /a", container_image="i"), field) == "/a"


def test_a_site_may_set_the_mounts_of_all_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text("container_mounts: /data\n")
    monkeypatch.setenv("MUSTER_SITE_CONFIG", str(tmp_path / "site.yaml"))

    assert load_job(None, {"command": ["a"]}).container_mounts == "/data"


def test_gpus_requested_in_two_ways_are_refused(job_file: Path) -> None:
    told = problem(None, command=["a"], gpus_per_node="8", gres="nvme:1,gpu:4")
    group = problem(job_file, "command: a\ngroups: [{name: a, nodes: 1, gpus_per_node: 8, gres: gpu:4}]")

    assert told == (
        "--gpus-per-node: 8 GPUs per node conflict with --gres nvme:1,gpu:4, which requests GPUs, too; give one of them"
        " (--sbatch gres= removes the gres of a settings or job file)"
    )
    assert group.startswith("job.yaml:2: groups, group 1: 8 GPUs per node conflict with --gres gpu:4")
    assert load_job(None, {"command": ["a"], "gpus_per_node": "8", "gres": "nvme:1"}).gres == "nvme:1"


def test_an_unknown_placeholder_of_a_service_causes_a_warning(job_file: Path) -> None:
    text = "command: a\nservices: {s: {command: 'x {foo} {http} {port} {address} {dir} ${b} {}', ports: {http: auto}}}"
    with pytest.warns(SettingsWarning) as warned:
        load(job_file, text)

    assert [str(each.message) for each in warned] == [
        "job.yaml:2: services.s.command: {foo} is not a placeholder and stays as it is; placeholders: "
        "{http}, {port}, {address}, {dir}"
    ]


def test_two_spellings_of_one_field_are_refused(job_file: Path) -> None:
    told = problem(job_file, "command: a\njob-name: x\nname: y")

    assert told == "job.yaml: job-name and name are the same field; give one of them"


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("nodes: 0", "nodes: '0' is not valid; allowed: a whole number, 1 or more, or a range such as 3-4"),
        ("nodes: -2", "nodes: '-2' is not valid; allowed: a whole number, 1 or more, or a range such as 3-4"),
        ("nodes: many", "nodes: 'many' is not valid; allowed: a whole number, 1 or more, or a range such as 3-4"),
        ("nodes:", "nodes: nothing is not valid; allowed: a whole number, 1 or more, or a range such as 3-4"),
        ("nodes: [1]", "nodes: ['1'] is not valid; allowed: a whole number, 1 or more, or a range such as 3-4"),
        ("backend: pbs", "backend: 'pbs' is not valid; allowed: auto, local or slurm"),
        ("ray: perhaps", "ray: 'perhaps' is not valid; allowed: true or false"),
        ('partition: "a\\nb"', "partition: 'a\\nb' contains a newline or a control character; allowed: one"),
        ("partition: ''", "partition: '' is empty; allowed: one line of text"),
        ("time: 2h", "time: '2h' is not a time limit; allowed: minutes, MM:SS, HH:MM:SS, D-HH,"),
        ("stop_grace: 5x", "stop_grace: '5x' is not a duration; allowed: a duration: seconds"),
        ("name: a/b", "name: 'a/b' contains a slash; allowed: 1 to 64 characters on one line, no slash"),
        ("env: {1A: x}", "env.1A: '1A' is not the name of an environment variable; allowed: NAME=VALUE"),
        ("env: {A: [x]}", "env.A: ['x'] is not valid; allowed: NAME=VALUE"),
        ("env: {A: }", "env.A: nothing is not valid; allowed: NAME=VALUE"),
        ("env: [A=x]", "env: ['A=x'] is not valid; allowed: NAME=VALUE"),
        ('sbatch: {mail_user: "a\\nb"}', "sbatch.mail_user: 'a\\nb' contains a newline or a control"),
        ("sbatch: {ntasks: 4}", "sbatch.ntasks: cannot be set here: Muster runs one agent on every node"),
        ("sbatch: {mail-tpye: END}", "sbatch.mail-tpye: is not an sbatch option; did you mean mail-type?"),
        ("sbatch: {hold: 3}", "sbatch.hold: takes no value, but has '3'; write only hold"),
        ("sbatch: {mem: lots}", "sbatch.mem: 'lots' is not an amount of memory; allowed: a number of"),
        ("sbatch: {p: a}\npartition: b", "sbatch.p: is 'a', but --partition (field partition) is 'b'"),
    ],
)
def test_a_bad_value_is_reported_with_field_value_and_allowed_values(job_file: Path, field: str, told: str) -> None:
    assert problem(job_file, f"command: a\n{field}").startswith(f"job.yaml:2: {told}")


def test_a_bad_word_of_the_command_is_reported_with_its_position(job_file: Path) -> None:
    assert problem(job_file, "command: [a, [b]]").startswith(
        "job.yaml:1: command, word 2: ['b'] is not valid; allowed:"
    )
    assert problem(None, command=["a", "b\0"]).startswith("COMMAND, word 2: 'b\\x00' contains a NUL byte; allowed:")


def test_a_missing_or_empty_command_is_reported(job_file: Path) -> None:
    assert problem(None).startswith("no command to run: give it after --, as in `muster run")
    assert problem(job_file, "nodes: 2").startswith("no command to run")
    assert problem(job_file, "command: []").startswith("job.yaml:1: command: [] is empty; allowed: a list of words")


def test_a_bad_flag_is_reported_as_flag_even_if_the_file_has_the_field(job_file: Path) -> None:
    told = problem(job_file, "command: a\ncpus_per_node: 2", cpus_per_node="0", sbatch={})

    assert told == "--cpus-per-node: '0' is not valid; allowed: a whole number, 1 or more"
    assert problem(None, command=["a"], sbatch={"ntasks": "4"}).startswith("--sbatch ntasks: cannot be set here")
    assert problem(None, command=["a"], env={"1A": "x"}).startswith("--env 1A: '1A' is not the name")


def test_a_good_flag_replaces_a_bad_value_in_the_file(job_file: Path) -> None:
    assert load(job_file, "command: a\nnodes: 0", nodes="2").nodes == 2


def test_all_problems_are_reported_at_once_in_one_line_each(job_file: Path) -> None:
    lines = problems(job_file, "nodez: 1\nbackend: pbs\nsbatch: {wrap: x}", nodes="0")

    assert [line.split(" ")[0] for line in lines] == ["job.yaml:1:", "job.yaml:3:", "no", "job.yaml:2:", "--nodes:"]


def test_a_long_or_nested_value_is_cut_short_in_the_message(job_file: Path) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    text = "command: a\nenv:\n  BOMB:\n" + "".join(f"    {line}\n" for line in bomb.splitlines())

    assert len(problem(job_file, text)) < 1000
    assert len(problem(job_file, f"command: a\nname: {'x' * 5000}")) < 300


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    words=st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1)).map(
        lambda words: ["run", *words]
    ),
    nodes=st.integers(1, 10_000),
    seconds=st.floats(0.001, 1e6),
)
def test_a_job_written_as_yaml_is_loaded_as_it_was(
    tmp_path: Path, words: list[str], nodes: int, seconds: float
) -> None:
    spec = JobSpec(command=words, nodes=nodes, start_timeout=seconds, exclusive=True, sbatch={"requeue": None})
    path = tmp_path / "job.yaml"

    path.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True)))

    assert load_job(path, {}) == spec


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(alphabet=st.sampled_from("nodes:[]{}-'\"\n\t &*!|>%@#,1a?"), max_size=40))
def test_any_text_is_either_a_job_or_a_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)

    with pytest.raises(SpecError) as caught:
        load_job(path, {})
    assert caught.value.problems and all("\n" not in line for line in caught.value.problems)
