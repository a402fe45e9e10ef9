"""Layers of settings (site, user, profile, environment, job file, flags): precedence, and errors with their origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.errors import SettingsWarning
from muster.spec import JobSpec, SpecError, explain_job, load_job

COMMAND = {"command": ["a"]}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    return _writer(tmp_path / "site.yaml", lambda path: monkeypatch.setenv("MUSTER_SITE_CONFIG", str(path)))


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    place = tmp_path / "xdg" / "muster" / "config.yaml"
    return _writer(place, lambda path: monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg")))


def _writer(path: Path, announce: Callable[[Path], None]) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        announce(path)
        return path

    return write


def problems(file: Path | None = None, **flags: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_job(file, {**COMMAND, **flags})
    return list(caught.value.problems)


Write = Callable[[str], Path]


def test_each_layer_wins_over_those_before_it(
    site: Write, user: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: list[Callable[[], Any]] = [
        lambda: site("account: site"),
        lambda: user("account: user"),
        lambda: site("account: site\nprofiles: {p: {account: site-profile}}"),
        lambda: user("account: user\nprofiles: {p: {account: user-profile}}"),
        lambda: monkeypatch.setenv("MUSTER_ACCOUNT", "variable"),
        lambda: (tmp_path / "job.yaml").write_text("account: file"),
    ]
    seen = []
    for lay in layers:
        lay()
        file = tmp_path / "job.yaml" if (tmp_path / "job.yaml").exists() else None
        profile = {"profile": "p"} if len(seen) >= 2 else {}
        seen.append(load_job(file, {**COMMAND, **profile}).account)
    seen.append(load_job(tmp_path / "job.yaml", {**COMMAND, "profile": "p", "account": "flag"}).account)
    assert seen == ["site", "user", "site-profile", "user-profile", "variable", "file", "flag"]


def test_fields_of_different_layers_are_merged(site: Write, user: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    site("partition: cpu\ninterface: ib0\nprofiles: {gpu: {partition: gpu, gpus_per_node: 8}}")
    user("account: ann\nprofiles: {gpu: {gres: 'nvme:1'}}")
    monkeypatch.setenv("MUSTER_PROFILE", "gpu")
    monkeypatch.setenv("MUSTER_RAY", "false")
    spec = load_job(None, COMMAND)
    assert (spec.partition, spec.interface, spec.account, spec.gpus_per_node) == ("gpu", "ib0", "ann", 8)
    assert (spec.gres, spec.ray) == ("nvme:1", False)


def test_entries_merge_through_all_layers(site: Write, user: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    site("env: {A: site, B: site}\nsbatch: {wckey: w, mail-type: END}")
    user("env: {B: user, C: user}")
    monkeypatch.setenv("MUSTER_ENV", "C=variable D='two words'")
    monkeypatch.setenv("MUSTER_SBATCH", "mail_type=FAIL requeue")
    spec = load_job(None, {**COMMAND, "env": {"E": "flag"}})
    assert spec.env == {"A": "site", "B": "user", "C": "variable", "D": "two words", "E": "flag"}
    assert spec.sbatch == {"wckey": "w", "mail-type": "FAIL", "requeue": None}


def test_a_removal_overrides_lower_layers_and_is_overridden_by_higher_ones(site: Write, user: Write) -> None:
    site("partition: cpu\nqos: high")
    user("sbatch: {partition: '', qos: ''}")
    assert load_job(None, COMMAND).partition is None
    assert load_job(None, COMMAND).sbatch == {"partition": "", "qos": ""}
    above = load_job(None, {**COMMAND, "partition": "gpu"})
    assert (above.partition, above.sbatch) == ("gpu", {"qos": ""})


def test_an_empty_section_of_a_later_layer_removes_nothing(site: Write, user: Write) -> None:
    site("env: {A: x}\nprofiles:\n  idle:\n")
    user("env:\n# all commented out\n")
    assert load_job(None, {**COMMAND, "profile": "idle"}).env == {"A": "x"}
    user("# nothing at all\n")
    assert load_job(None, COMMAND).env == {"A": "x"}


def test_one_file_serves_many_users(site: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ann")
    monkeypatch.delenv("NOWHERE", raising=False)
    path = site("runs_dir: /scratch/$USER/${USER}s-runs\nsetup: echo $USER\ncomment: costs 5$")
    spec = load_job(None, COMMAND)
    assert (spec.runs_dir, spec.setup, spec.comment) == ("/scratch/ann/anns-runs", "echo $USER", "costs 5$")
    site("runs_dir: /scratch/$NOWHERE\nworkdir: a$")
    assert problems() == [
        f"{path}:1: runs_dir: '/scratch/$NOWHERE' uses the variable NOWHERE, which is not set",
        f"{path}:2: workdir: 'a$' has a $ without a name; write $$ for a $ sign",
    ]


def test_mistakes_are_reported_with_their_layer(site: Write, user: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = site("nodes: 0\nprofiles: {p: {backend: pbs, nodez: 3, sbatch: {ntasks: 2}}}")
    mine = user("command: [a]\nname: x\nenv: {1A: x}")
    monkeypatch.setenv("MUSTER_TIME", "soon")
    monkeypatch.setenv("MUSTER_SBATCH", "'")
    told = problems(profile="p")
    starts = [
        f"{mine}:1: command: is not a setting; it belongs in a job file or on the command line",
        f"{mine}:2: name: is not a setting; it belongs in a job file or on the command line",
        f"{path}:2: unknown field 'profiles.p.nodez'; did you mean nodes, nodelist?",
        f"{path}:2: profiles.p.sbatch.ntasks: cannot be set here",
        "MUSTER_SBATCH: No closing quotation; write KEY=VALUE",
        f"{path}:2: profiles.p.backend: 'pbs' is not valid; allowed: auto, local or slurm",
        f"{path}:1: nodes: '0' is not valid; allowed: a whole number, 1 or more, or a range such as 3-4",
        f"{mine}:3: env.1A: '1A' is not the name",
        "MUSTER_TIME: 'soon' is not a time limit",
    ]
    assert len(told) == len(starts)
    assert all(any(line.startswith(start) for line in told) for start in starts), told


def test_an_unknown_profile_is_reported_with_the_known_ones(
    site: Write, user: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(profile="p")[0].startswith("--profile: there is no profile 'p'; define it under `profiles:` in")
    site("profiles: {gpu: {}}")
    user("profiles: {cpu: {}}")
    monkeypatch.setenv("MUSTER_PROFILE", "p")
    assert problems() == ["MUSTER_PROFILE: there is no profile 'p'; known profiles: cpu, gpu"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("profiles: [a]", "profiles: has no profiles"),
        ("profiles: {a: gpu}", "profiles.a: has no fields"),
        ("- a", "holds a list instead of fields"),
        ("nodes: [1", "malformed YAML"),
    ],
)
def test_an_invalid_settings_file_is_reported(site: Write, text: str, told: str) -> None:
    path = site(text)
    (line,) = problems()
    assert line.startswith(str(path)) and told in line


def test_an_unreadable_settings_file_is_reported_and_a_missing_one_is_not(site: Write) -> None:
    path = site("")
    path.unlink()
    assert load_job(None, COMMAND) == JobSpec(command=["a"])
    path.mkdir()
    assert problems() == [f"{path}: is a directory, not a settings file"]


def test_only_a_misspelt_variable_causes_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUSTER_SOMETHING_ELSE", "MUSTER_ATTEMPT", "MUSTER_OUTPUT_DIR", "MUSTER_NODE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MUSTER_ACCOUNT", "")
    assert load_job(None, COMMAND).account is None
    monkeypatch.setenv("MUSTER_PARTITON", "gpu")
    with pytest.warns(SettingsWarning, match="MUSTER_PARTITON has no effect; did you mean MUSTER_PARTITION?"):
        load_job(None, COMMAND)
    monkeypatch.delenv("MUSTER_PARTITON")
    monkeypatch.setenv("MUSTER_NAME", "x")
    with pytest.warns(SettingsWarning, match="MUSTER_NAME has no effect: name belongs in a job file"):
        assert load_job(None, COMMAND).name == "muster"


def test_the_origin_of_every_value_is_known(site: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = site("env: {A: x}\nprofiles: {p: {sbatch: {p: gpu}}}")
    monkeypatch.setenv("MUSTER_NODES", "3")
    resolved = explain_job(None, {"profile": "p", "time": "5"})
    assert resolved.origins == {
        "env": f"{path}: env",
        "env.A": f"{path}: env.A",
        "sbatch": f"{path}: profiles.p.sbatch",
        "sbatch.partition": f"{path}: profiles.p.sbatch.p",
        "partition": f"{path}: profiles.p.sbatch.p",
        "nodes": "MUSTER_NODES",
        "time": "--time",
    }


def test_the_python_api_reads_settings_and_a_spec_does_not(
    site: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site("partition: cpu\nprofiles: {gpu: {partition: gpu}}")
    monkeypatch.setenv("MUSTER_NODES", "3")
    (tmp_path / "job.yaml").write_text("command: [b]\nqos: low")
    spec = muster.load_job(tmp_path / "job.yaml", profile="gpu", account="me")
    assert (spec.partition, spec.nodes, spec.qos, spec.account) == ("gpu", 3, "low", "me")
    assert muster.load_job(command=["a"]).partition == "cpu"
    assert (muster.JobSpec(command=["a"]).partition, muster.JobSpec(command=["a"]).nodes) == (None, 1)


def test_an_error_does_not_quote_a_secret() -> None:
    told = problems(env={"API_KEY": "very\0secret", "URL": "https://ann:verysecret@host\0", "1A": "x"})
    assert len(told) == 3 and "secret" not in "".join(told)


@pytest.mark.parametrize("profile", [{}, {"profile": "gpu"}, {"profile": "debug"}])
def test_the_example_of_a_site_s_settings_is_valid(profile: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SITE_CONFIG", str(Path(__file__).parents[2] / "examples" / "site-config.yaml"))
    monkeypatch.setenv("USER", "ann")
    assert load_job(None, {**COMMAND, **profile}).runs_dir == "/scratch/ann/muster-runs"
