"""The report as a file: of large, odd and hostile runs."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.running import MusterCommand
from tests.views.synthetic import HOSTILE, SyntheticRun, hostile_run, large_run

from muster.cli.errors import run_command_line
from muster.cli.main import cli
from muster.rundir import RunPaths
from muster.views.metrics import metrics
from muster.views.record import RunReader
from muster.views.report import ASSETS, ensure_report, report, text_of


class Elements(HTMLParser):
    """What a browser would make of the file."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href") or name.startswith("on")]


def test_a_thousand_nodes_and_three_cycles_take_less_than_five_megabytes(tmp_path: Path) -> None:
    """And less than three seconds: bench/seeing.py."""
    page = report(RunReader(large_run(tmp_path / "large", services=("sandbox", "judge")).paths).read())
    assert len(page.encode()) < 5_000_000


def test_the_report_needs_nothing_but_itself(tmp_path: Path) -> None:
    page = report(RunReader(large_run(tmp_path / "r", nodes=24).paths).read())
    elements = Elements(page)
    assert elements.addresses == []
    assert elements.tags.count("script") == 7 and "link" not in elements.tags
    assert "default-src &#x27;none&#x27;" in page


def test_no_script_of_ours_makes_html_of_text() -> None:
    scripts = "".join(path.read_text() for path in ASSETS.glob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", scripts)


def test_nothing_hostile_gets_out_of_its_place_in_the_file(tmp_path: Path) -> None:
    plain = report(RunReader(SyntheticRun(tmp_path / "plain", 2).paths).read())
    page = report(RunReader(hostile_run(tmp_path / "r").paths).read())
    assert sorted(Elements(page).tags) == sorted(Elements(plain).tags)
    page.encode()  # lone surrogates would not do
    assert not [char for char in page if not char.isprintable() and char not in "\n\t"]


def test_nothing_hostile_reaches_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = hostile_run(tmp_path / "r")
    assert run_command_line(cli, ["report", "--text", run.paths.root]) == 0
    assert run_command_line(cli, ["compare", run.paths.root, run.paths.root]) == 0
    assert run_command_line(cli, ["status", run.paths.root]) == 0
    shown = capsys.readouterr().out
    assert HOSTILE[0] in shown and "red" in shown
    assert not [char for char in shown if not char.isprintable() and char not in "\n\t"]


def test_a_terminal_that_cannot_show_a_character_shows_another(muster: MusterCommand, tmp_path: Path) -> None:
    muster.env["PYTHONIOENCODING"] = "ascii"
    run = hostile_run(tmp_path / "r")
    for command in (("report", "--text"), ("top",), ("status",)):
        done = muster(*command, run.paths.root)
        assert done.returncode == 0, done.stderr
        assert HOSTILE[0] in done.stdout or command == ("top",)


def test_secrets_are_in_no_report(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    secret = "hf_abcdefghijklmnop1234"
    job = json.loads(Path(run.paths.job).read_text())
    Path(run.paths.job).write_text(json.dumps({**job, "command": ["x", "--password", "verysecret1", secret]}))
    Path(run.attempt.node_log(1)).write_text(f"HF_TOKEN={secret}\n")
    run.brings_up()
    run.error = {"rank": 1, "host": "gpu0001", "phase": "ray", "reason": "it broke", "log_tail": []}
    run.ends(1)
    record = RunReader(run.paths).read()
    shown = report(record) + metrics(record) + "\n".join(text_of(record))
    assert "it broke" in shown and "HF_TOKEN=" in shown
    assert secret not in shown and "verysecret1" not in shown


def test_a_report_is_left_once_beside_a_run_that_is_over_and_as_old_as_its_end(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.write("running")
    assert ensure_report(run.paths) is None
    run.ends()
    assert ensure_report(run.paths) == run.paths.report
    assert os.stat(run.paths.report).st_mtime == os.stat(run.attempt.outcome).st_mtime
    first = os.stat(run.paths.report).st_ino
    assert ensure_report(run.paths) == run.paths.report and os.stat(run.paths.report).st_ino == first
    assert 'muster_run_exit_code{run="r"} 0' in Path(run.paths.metrics).read_text()


@pytest.mark.parametrize(
    "spoil", ["attempt-0/status-0.json", "attempt-0/events-0.jsonl", "job.json", "submission.json"]
)
def test_whatever_is_missing_or_of_another_kind_a_report_is_written(tmp_path: Path, spoil: str) -> None:
    for number, contents in enumerate((None, b"", b"[]", b"7", b'{"nodes": "many", "state": [1]}', b"\xff\0")):
        run = large_run(tmp_path / str(number), nodes=8)
        path = Path(run.paths.root, spoil)
        path.unlink() if contents is None else path.write_bytes(contents)
        assert "<script>" in report(RunReader(run.paths).read())


def test_a_report_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    run = large_run(tmp_path / "r", nodes=8)
    os.mkdir(run.paths.report)
    assert ensure_report(run.paths) is None or os.path.isdir(run.paths.report)
    assert ensure_report(RunPaths(str(tmp_path / "nothing"))) is None
