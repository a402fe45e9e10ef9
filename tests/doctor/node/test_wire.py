"""Reports of nodes as lines of the launcher's output."""

from __future__ import annotations

from muster.doctor.node.wire import MARK, report_lines, reports_in


def test_reports_survive_the_launcher_that_mixes_lines() -> None:
    reports = {node_index: {"host": f"n{node_index}", "text": "é\n" * 1000} for node_index in range(3)}
    lines = [line for node_index, report in reports.items() for line in report_lines(node_index, report)]
    assert max(map(len, lines)) < 1000
    assert reports_in("\n".join(["noise", *reversed(lines), "srun: noise"])) == reports
    assert set(reports_in("\n".join(lines[1:]))) == {1, 2}  # a report that is not whole is none


def test_lines_that_only_begin_like_a_report_are_ignored() -> None:
    assert reports_in(f"{MARK}\n{MARK} 0 0\nx{MARK} 0 0 1 {{}}\n") == {}
