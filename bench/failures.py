"""Inject every fault of tests/lab/faults.py, check the time limits, and write docs/reference/failures.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "reference" / "failures.md"

HEAD = """# Failures, as they look

Output of `muster run` after each of these faults in a run on a real Slurm (`make failures` writes this page). A failed
run ends by itself and leaves no process behind. Its exit code is the driver's, or 125 if the driver did not fail.

| failure | the run had ended after |
|---|---|
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.jsonl"
        env = {**os.environ, "FAULTS_REPORT": str(report), "FAULTS_BOUNDED": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "tests/lab/test_faults.py"]
        code = subprocess.run(command, cwd=REPOSITORY, env=env).returncode
        if code == 0:
            rows = [json.loads(line) for line in report.read_text().splitlines()]
            PAGE.write_text(page(rows))
            print(f"{len(rows)} failures in {PAGE.relative_to(REPOSITORY)}")
    return code


def page(rows: list[dict[str, Any]]) -> str:
    timed = [f"| {row['name']} | {row['seconds']:.1f} s |" for row in rows if row["seconds"] is not None]
    return HEAD + "\n".join(timed) + "\n" + "".join(section(row) for row in rows)


def section(row: dict[str, Any]) -> str:
    title = row["name"][0].upper() + row["name"][1:]
    shown = "\n".join("    " + line for line in tidy(row["output"]).splitlines())
    return f"\n## {title}\n\n{row['cause']} {row['advice']}\n\n{shown}\n"


def tidy(text: str) -> str:
    """Remove parts that differ between runs: the end of run ids, long log tails."""
    text = re.sub(r"muster-\d{8}T\d{6}-[0-9a-f]{4}", "muster-20260101T090000-ab12", text)
    lines = [line for line in text.splitlines() if line.strip() and line != "ready"]
    quoted = [at for at, line in enumerate(lines) if line.startswith("    |")]
    dropped = set(quoted[:-3])  # all quoted log lines except the last three
    return "\n".join(line[:160] for at, line in enumerate(lines) if at not in dropped)


if __name__ == "__main__":
    sys.exit(main())
