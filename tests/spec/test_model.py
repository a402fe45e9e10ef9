"""The model of the job spec: defaults, accepted values, and refused values with their messages."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muster.spec import JobSpec, SpecError
from muster.spec.flags import flags_of
from muster.spec.model import FLAGS
from muster.spec.sbatch_options import DECIDED, KNOWN, SHORT, as_argument


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


def test_a_command_is_enough_for_a_job() -> None:
    spec = JobSpec(command=["python", "train.py"])

    assert (spec.name, spec.backend, spec.nodes, spec.ray) == ("muster", "auto", 1, True)
    assert (spec.gather_timeout, spec.start_timeout, spec.stop_grace) == (600, 300, 30)
    assert spec.sbatch_requests() == {}


def test_every_field_has_a_flag_with_help_group_and_allowed_values() -> None:
    assert list(flags_of(JobSpec)) == list(JobSpec.model_fields)
    for name, flag in FLAGS.items():
        assert flag.help and flag.group and flag.allowed, name


def test_every_sbatch_field_sets_the_sbatch_option_of_its_name() -> None:
    for name, flag in FLAGS.items():
        if flag.group == "Slurm" and name != "sbatch":
            assert flag.sbatch == name.replace("_", "-")
            assert flag.sbatch in KNOWN and flag.sbatch not in DECIDED
            assert not flag.short or SHORT[flag.short[1:]] == flag.sbatch


def test_a_job_cannot_be_changed_or_given_unknown_fields() -> None:
    with pytest.raises(ValidationError):
        job().nodes = 3  # type: ignore[misc]
    with pytest.raises(SpecError):
        job(nodez=3)


def test_an_invalid_job_in_python_raises_spec_error_with_a_line_per_problem() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec(command=["a"], nodes=0, nodez=3)  # type: ignore[call-arg]
    assert refused.value.problems == (
        "nodes: 0 is not valid; allowed: a whole number, 1 or more, or a range such as 3-4",
        "unknown field 'nodez'; did you mean nodes, nodelist?",
    )


def test_validation_by_pydantic_raises_pydantic_s_error() -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"command": ["a"], "nodes": 0})


def test_nodes_given_distinguishes_one_node_from_the_default() -> None:
    assert job(nodes=1).nodes_given
    assert not job().nodes_given


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", 0),
        ("nodes", -3),
        ("nodes", True),
        ("nodes", 1.5),
        ("nodes", "two"),
        ("nodes", "4-2"),
        ("cpus_per_node", 0),
        ("gpus_per_node", -1),
        ("gpus_per_node", "a100:4"),
        ("backend", "pbs"),
        ("ray", "perhaps"),
        ("name", ""),
        ("name", " "),
        ("name", "a/b"),
        ("name", "x" * 65),
        ("name", "a\nb"),
        ("command", []),
        ("command", ""),
        ("command", [""]),
        ("command", ["a\0b"]),
        ("command", ["python", 3]),
        ("setup", "module load\0"),
        ("env", {"1A": "x"}),
        ("env", {"A-B": "x"}),
        ("env", {"": "x"}),
        ("env", {"A": "x\0"}),
        ("env", ["A=x"]),
        ("mem", "4 elephants"),
        ("exclusive", "everyone"),
        ("exclusive", 3),
        ("sbatch", "mem=4G"),
        ("workdir", ""),
        ("interface", "10.1.0"),
        ("interface", "10.1.0.300"),
        ("interface", "10.1.0.0/40"),
        ("interface", "eth0/24"),
        ("interface", "fd77:::1"),
        ("interface", "eth0,,ib0"),
        ("interface", "eth0 ib0"),
    ],
)
def test_invalid_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(SpecError):
        job(**{field: value})


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\x1bb", "a\0b", "a\u2028b", "\x85", "\udcff"])
@pytest.mark.parametrize("field", [name for name, flag in FLAGS.items() if flag.sbatch and name != "gpus_per_node"])
def test_nothing_that_reaches_the_batch_script_has_a_newline_or_control_character(field: str, bad: str) -> None:
    with pytest.raises(SpecError):
        job(**{field: bad})
    with pytest.raises(SpecError):
        job(sbatch={"mail-user": bad})


def test_sbatch_keys_get_their_long_names() -> None:
    spec = job(sbatch={"--mail-type": "END", "mem_per_cpu": "2G", "L": "matlab:1"})

    assert spec.sbatch == {"mail-type": "END", "mem-per-cpu": "2G", "licenses": "matlab:1"}


def test_an_sbatch_option_with_a_field_moves_into_it() -> None:
    spec = job(sbatch={"partition": "gpu", "t": "30", "exclusive": None, "gpus-per-node": "4"})

    assert (spec.partition, spec.time, spec.exclusive, spec.gpus_per_node) == ("gpu", "30", True, 4)
    assert spec.sbatch == {}


def test_an_option_given_in_two_ways_must_have_one_value() -> None:
    assert job(partition="gpu", sbatch={"partition": "gpu"}).partition == "gpu"
    with pytest.raises(SpecError, match="give it once"):
        job(partition="gpu", sbatch={"partition": "cpu"})
    with pytest.raises(SpecError, match="given twice"):
        job(sbatch={"mem-per-cpu": "1G", "mem_per_cpu": "2G"})


@pytest.mark.parametrize("key", sorted(DECIDED))
def test_an_option_that_muster_decides_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(SpecError, match="cannot be set here"):
        job(sbatch={key: "1"})


@pytest.mark.parametrize(
    ("key", "meant"), [("mail-tpye", "mail-type"), ("constriant", "constraint"), ("part", "partition")]
)
def test_a_misspelt_sbatch_option_is_refused_with_the_nearest(key: str, meant: str) -> None:
    with pytest.raises(SpecError, match=f"did you mean .*{meant}"):
        job(sbatch={key: "x"})


@pytest.mark.parametrize("key", ["container-image", "container-mounts", "no-container-mount-home", "auks", "site.x"])
def test_options_of_site_plugins_pass_through(key: str) -> None:
    assert job(sbatch={key: "x"}).sbatch == {key: "x"}


@pytest.mark.parametrize("key", ["", "--", "mail type", "a=b", "a\nb", "a;b", "a#b"])
def test_an_invalid_option_name_is_refused(key: str) -> None:
    with pytest.raises(SpecError):
        job(sbatch={key: "x"})


def test_options_without_a_value_differ_from_removed_ones() -> None:
    spec = job(
        sbatch={
            "requeue": None,
            "hold": "true",
            "contiguous": "false",
            "output": "",
            "container-writable": None,
        }
    )

    assert spec.sbatch_requests() == {
        "requeue": None,
        "hold": None,
        "contiguous": "",
        "output": "",
        "container-writable": None,
    }
    with pytest.raises(SpecError, match="takes no value"):
        job(sbatch={"requeue": "often"})


def test_sbatch_requests_has_all_sbatch_options_of_a_job() -> None:
    spec = job(partition="gpu", gpus_per_node=0, exclusive=True, time=30, sbatch={"mail-type": "END"})

    requests = spec.sbatch_requests()

    assert requests == {"partition": "gpu", "gpus-per-node": "0", "exclusive": None, "time": "30", "mail-type": "END"}
    assert [as_argument(*option) for option in requests.items()][2:4] == ["--time=30", "--exclusive"]
    assert job(exclusive=False).sbatch_requests() == {"exclusive": ""}


text = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter(str.strip)


@given(
    command=st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))).map(
        lambda words: ["run", *words]
    ),
    env=st.dictionaries(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]*\Z"), text),
    comment=st.none() | text,
    nodes=st.integers(1, 10_000),
    stop_grace=st.floats(0, 1e6),
    sbatch=st.dictionaries(st.sampled_from(["mail-user", "wckey", "container-image"]), st.none() | text),
)
def test_a_job_survives_its_json_unchanged(**fields: Any) -> None:
    spec = JobSpec(**fields)

    assert JobSpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec


@given(
    st.dictionaries(
        st.sampled_from(list(JobSpec.model_fields)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        ),
    )
)
def test_any_input_is_either_a_job_or_a_validation_error(fields: dict[str, Any]) -> None:
    with contextlib.suppress(ValidationError):
        JobSpec.model_validate({"command": ["true"], **fields})
