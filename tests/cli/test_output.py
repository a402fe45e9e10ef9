"""Tables, output of programs and notices that several commands print."""

from __future__ import annotations

import pytest

from muster.cli.output import count_runs, print_cancelled_job, print_table, write_output
from muster.rundir import RunPaths
from muster.slurm.jobs import SlurmJobs


def test_a_table_aligns_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("run", "files"), [("a", "1"), ("long-name", "1,000")], align_right=True)
    assert capsys.readouterr().out.splitlines() == ["run        files", "a              1", "long-name  1,000"]


def test_for_programs_each_row_is_one_line_of_up_to_the_given_width(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [("x" * 100, "y" * 100)], pipe_width=300)
    assert len(capsys.readouterr().out.splitlines()) == 2
    print_table(("a", "b"), [("x" * 100, "y" * 100)], pipe_width=80)
    assert len(capsys.readouterr().out.splitlines()) > 2


def test_columns_are_aligned_by_what_is_seen_and_need_not_be_folded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("run", "state"), [("\u4e2d\u6587", "x"), ("abcde", "y")], pipe_width=80)  # two cells for each sign
    assert capsys.readouterr().out.splitlines() == ["run    state", "\u4e2d\u6587   x", "abcde  y"]


def test_a_cell_is_text_and_neither_markup_nor_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a",), [("[red]\x1b[2J",)])
    out = capsys.readouterr().out
    assert "[red]" in out and "\x1b" not in out


def test_output_of_a_program_is_written_unchanged(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_output(b"\xff\x00\n")
    assert capfdbinary.readouterr().out == b"\xff\x00\n"


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_runs_are_counted_in_words(number: int, text: str) -> None:
    assert count_runs(number) == text


def test_a_cancelled_job_is_named_and_none_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    print_cancelled_job(RunPaths("/runs/train"), None)
    assert capsys.readouterr().err == ""
    print_cancelled_job(RunPaths("/runs/train"), SlurmJobs(("17", "18")))
    assert capsys.readouterr().err == "muster: train has ended but still held nodes: cancelled Slurm job 17, 18\n"
