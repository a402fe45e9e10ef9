"""Seconds without Ray's control service (GCS) after each of 20 kills: runs the slow test, which records the times."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RESULT = REPOSITORY / "bench" / "results" / "gcs_recovery.json"
TEST = "tests/local/test_gcs_recovery.py"
COLUMNS = {
    "gcs": "the restarted GCS accepts connections",
    "used": "an actor lookup and a placement group that began after the kill are done",
    "round": "a task, an actor call and a new actor that began after the kill are done",
}


def main() -> int:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        env = {**os.environ, "GCS_RECOVERY_REPORT": str(report)}
        command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", TEST]
        code = subprocess.run(command, cwd=REPOSITORY, env=env).returncode
        if code:
            return code
        found = json.loads(report.read_text())
    kills = found["kills"]
    print(f"{len(kills)} kills; load of the machine before: {load:.1f}; seconds after the kill\n")
    print("| | median | maximum |\n|---|---|---|")
    result = {"kills": len(kills), "load_before": round(load, 1)}
    for column, meaning in COLUMNS.items():
        values = [kill[column] for kill in kills]
        median, most = statistics.median(values), max(values)
        result[column] = {"median": round(median, 2), "max": round(most, 2)}
        print(f"| {meaning} | {median:.2f} | {most:.2f} |")
    for what, seconds in found["usual"].items():
        result[f"usual {what}"] = round(seconds, 2)
        print(f"| (any {what}: median duration) | {seconds:.2f} | |")
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
