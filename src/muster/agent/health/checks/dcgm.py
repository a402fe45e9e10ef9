"""The short diagnosis of DCGM, where it is installed."""

from __future__ import annotations

import re

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed, skipped

DIAGNOSIS = ("dcgmi", "diag", "-r", "1")
_ROW = re.compile(r"^\|(?P<name>[^|]*)\|(?P<result>[^|]*)\|$")
_UNREACHABLE = "Unable to connect to host engine"


def check_diagnosis(node: CheckedNode, threshold: float | None) -> Finding:
    done = node.output(*DIAGNOSIS)
    if done is None:
        return skipped("DCGM is not installed")
    return judge_diagnosis(done[1])


def judge_diagnosis(table: str) -> Finding:
    """Judge the table of `dcgmi diag`: a row is a test with its result, an error, or the continuation of a row."""
    rows: list[tuple[str, str]] = []
    for line in table.splitlines():
        if match := _ROW.match(line):
            name, result = match["name"].strip(" -"), match["result"].strip(" -")
            if not name and rows:
                rows[-1] = rows[-1][0], f"{rows[-1][1]} {result}"
            else:
                rows.append((name, result))
    wrong = [f"{name}: {result}" for name, result in rows if name == "Error" or result.startswith("Fail")]
    if wrong:
        return failed("; ".join(wrong))
    if _UNREACHABLE in table or not rows:
        return skipped("DCGM does not run")
    return passed(f"{sum(result.startswith('Pass') for _, result in rows)} tests")
