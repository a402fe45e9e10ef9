"""Seconds lost with a lost node or leader: runs the lab's tests, also the slow ones, which record the times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RESULT = REPOSITORY / "bench" / "results" / "spares.json"
TESTS = ("tests/lab/test_spares.py", "tests/lab/test_succession.py")
COLUMNS = {
    "noticed": "noticed after",
    "mended": "spare in Ray, or driver again, after",
    "freed": "nodes freed after the end",
}


def main() -> int:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.jsonl"
        env = {**os.environ, "SPARES_REPORT": str(report)}
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "", *TESTS], cwd=REPOSITORY, env=env
        ).returncode
        rows = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    print(f"Load of the machine before: {load:.1f}. Ray's start is CPU time: only figures of an idle machine count.\n")
    print("| lost | " + " | ".join(COLUMNS.values()) + " |\n|---|" + "---|" * len(COLUMNS))
    for row in rows:
        cells = [f"{row[column]:.1f} s" if column in row else "" for column in COLUMNS]
        print(f"| {row['what']} | " + " | ".join(cells) + " |")
    if code == 0:
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
