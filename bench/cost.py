"""Cost of a run for the cluster: slurmctld's RPCs by type, files and bytes of the run directory, for 4 and 64 nodes.

It uses a real Slurm (the lab; needs root) and `--no-ray`: after a success Ray adds nothing to these.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import machine, save, table

from muster.lab import Lab

STATE = Path("/run/ml-cost")
SIZES = (4, 64)
OWN_RPCS = {"REQUEST_STATS_INFO"}  # of this measurement


def main() -> int:
    with Lab(nodes=max(SIZES), state_dir=STATE, shared=[Path(__file__).parents[1]]) as lab:
        measured = {str(nodes): cost(lab, nodes) for nodes in SIZES}
    costs = [measured[str(nodes)] for nodes in SIZES]
    names = sorted({name for one in costs for name in one["rpcs"]})
    rpcs = [[name, *(str(one["rpcs"].get(name, 0)) for one in costs)] for name in names]
    print(table([["RPC", *map(str, SIZES)], *rpcs]), end="\n\n")
    print(
        table(
            [
                ["run directory", *map(str, SIZES)],
                *([what, *(str(one[what]) for one in costs)] for what in ("files", "bytes")),
            ]
        )
    )
    save("cost.json", {"machine": machine(), "nodes": measured})
    return 0


def cost(lab: Lab, nodes: int) -> dict[str, Any]:
    """Measure one run from submission to its end."""
    home = STATE / "shared" / f"cost-{nodes}"
    home.mkdir()
    env = {**os.environ, **lab.env_additions(), "HOME": str(home)}
    subprocess.run(["sdiag", "--reset"], env=env, check=True, capture_output=True)
    argv = [sys.executable, "-m", "muster.cli.main", "run", "-N", str(nodes), "--no-ray", "--python", sys.executable]
    subprocess.run([*argv, "--", "true"], env=env, cwd=home, check=True, capture_output=True, timeout=300)
    output = subprocess.run(["sdiag"], env=env, check=True, capture_output=True, text=True).stdout
    report = output.partition("by message type")[2].partition("by user")[0]
    rpcs = {name: int(count) for name, count in re.findall(r"(\w+)\s+\(\s*\d+\) count:(\d+)", report)}
    files = list((home / "muster-runs").rglob("*"))
    return {
        "rpcs": {name: count for name, count in rpcs.items() if name not in OWN_RPCS},
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files if path.is_file()),
    }


if __name__ == "__main__":
    sys.exit(main())
