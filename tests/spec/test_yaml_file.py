"""Job and settings files: scalars stay text, and mistakes are reported with file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.spec import SpecError
from muster.spec.yaml_file import read_job_file, read_settings_file


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for a job file that errors name as `job.yaml`."""
    monkeypatch.chdir(tmp_path)
    return Path("job.yaml")


def problem(path: Path, text: str) -> str:
    """The one line in which this job file is refused."""
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_job_file(path)
    (line,) = str(caught.value).splitlines()
    return line


def test_every_scalar_but_null_is_text_as_written(path: Path) -> None:
    path.write_text("time: 1:30:00\nname: 007\nray: no\nlr: 0.10\nat: 2024-01-01\npartition:\nqos: ~\nmode: 0o17\n")
    assert read_job_file(path) == {
        "time": "1:30:00",
        "name": "007",
        "ray": "no",
        "lr": "0.10",
        "at": "2024-01-01",
        "partition": None,
        "qos": None,
        "mode": "0o17",
    }


def test_anchors_and_merge_keys_work_and_a_number_as_a_key_is_text(path: Path) -> None:
    path.write_text("env: &base {A: x}\nmore: {<<: *base, B: y}\n1: one\n")
    assert read_job_file(path) == {"env": {"A": "x"}, "more": {"A": "x", "B": "y"}, "1": "one"}


def test_a_key_may_override_a_merged_one(path: Path) -> None:
    path.write_text("env: &base {A: x}\nmore: {<<: *base, A: y}\n")
    assert read_job_file(path)["more"] == {"A": "y"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("job.sh", "python x.py\n"), ("job.sbatch", "#SBATCH -N 2\nsrun x\n"), ("job", "#!/bin/bash\nexport A=1\n")],
)
def test_a_shell_script_is_refused_with_the_way_to_keep_it(name: str, text: str, path: Path) -> None:
    assert problem(Path(name), text) == (
        f"{name}: is a shell script, not a job file; to use Muster inside your own batch script, see "
        "docs/how-to/keep-your-sbatch.md"
    )


def test_the_lines_of_fields_and_of_fields_of_profiles_are_known(path: Path) -> None:
    path.write_text("nodes: 1\n\nname: x\nprofiles:\n  gpu:\n    time: 1\n  cpu: {time: 2}\n")
    lines = read_job_file(path).lines
    assert (lines["nodes"], lines["name"]) == (1, 3)
    assert (lines["profiles.gpu.time"], lines["profiles.cpu.time"]) == (6, 7)


def test_a_settings_file_may_be_empty_or_missing_and_a_job_file_may_not(path: Path) -> None:
    assert read_settings_file(path) is None
    path.write_text("# nothing yet\n")
    assert read_settings_file(path) == {}
    with pytest.raises(SpecError, match=r"job.yaml: is empty; write fields"):
        read_job_file(path)


def test_a_link_to_nothing_is_not_a_missing_settings_file(path: Path) -> None:
    path.symlink_to("nowhere.yaml")
    with pytest.raises(SpecError, match=r"job.yaml: cannot be read: No such file or directory"):
        read_settings_file(path)


def test_a_mistake_in_a_settings_file_is_not_called_one_of_a_job_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(SpecError, match=r"^job.yaml: is a directory, not a settings file$"):
        read_settings_file(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: [1, 2", r"job.yaml:1:13: malformed YAML"),
        ("command: a\n\tnodes: 2", r"job.yaml:2:1: malformed YAML"),
        (
            "command: a\nnodes: 2\nnodes: 3",
            r"job.yaml:3:1: malformed YAML: 'nodes' is given twice, first in line 2",
        ),
        ("env:\n  A: 1\n  A: 2", r"job.yaml:3:3: malformed YAML: 'A' is given twice, first in line 2"),
        (
            "name: !!python/object:os.system x",
            r"job.yaml:1:7: malformed YAML: could not determine a constructor",
        ),
        ("name: a\n---\nname: b", r"job.yaml:2:1: malformed YAML"),
        ("? [a]\n: b", r"job.yaml:1:3: malformed YAML"),
        ("*x", r"job.yaml:1:1: malformed YAML: found undefined alias 'x'"),
        ("", r"job.yaml: is empty"),
        ("# nothing\n", r"job.yaml: is empty"),
        ("- a\n- b", r"job.yaml: holds a list instead of fields"),
        ("nodes 2", r"job.yaml: holds only 'nodes 2' instead of fields"),
        ("[" * 5000, r"job.yaml: is nested too deeply"),
        ("# " + "x" * (1 << 20), r"job.yaml: is larger than 1 MiB"),
    ],
)
def test_an_invalid_job_file_is_reported_with_line_and_column(path: Path, text: str, told: str) -> None:
    assert problem(path, text).startswith(told)


def test_a_binary_file_is_reported(path: Path) -> None:
    path.write_bytes(b"name: \xff\xfe\x00")

    with pytest.raises(SpecError, match=r"^job.yaml: is not text"):
        read_job_file(path)


def test_an_unreadable_file_is_reported(path: Path) -> None:
    with pytest.raises(SpecError, match=r"^job.yaml: cannot be read: No such file or directory$"):
        read_job_file(path)
    with pytest.raises(SpecError, match=r"cannot be read"):
        read_job_file(Path("a\0b"))
    with pytest.raises(SpecError, match=r"^/proc/self/mem: cannot be read: Input/output error$"):
        read_job_file(Path("/proc/self/mem"))
    path.mkdir()
    with pytest.raises(SpecError, match=r"^job.yaml: is a directory, not a job file$"):
        read_job_file(path)
