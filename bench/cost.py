"""What a run costs a cluster: slurmctld's RPCs by type, files and bytes of the run directory, at 4 and at 64 nodes.

Real Slurm (the lab, root), `--no-ray`: Ray adds nothing to these after a success.
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
OURS_TO_ASK = {"REQUEST_STATS_INFO"}


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
    """One whole run, from submission to its end."""
    where = STATE / "shared" / f"cost-{nodes}"
    where.mkdir()
    env = {**os.environ, **lab.env_additions(), "HOME": str(where)}
    subprocess.run(["sdiag", "--reset"], env=env, check=True, capture_output=True)
    words = [sys.executable, "-m", "muster.cli.main", "run", "-N", str(nodes), "--no-ray", "--python", sys.executable]
    subprocess.run([*words, "--", "true"], env=env, cwd=where, check=True, capture_output=True, timeout=300)
    said = subprocess.run(["sdiag"], env=env, check=True, capture_output=True, text=True).stdout
    report = said.partition("by message type")[2].partition("by user")[0]
    rpcs = {name: int(count) for name, count in re.findall(r"(\w+)\s+\(\s*\d+\) count:(\d+)", report)}
    files = list((where / "muster-runs").rglob("*"))
    return {
        "rpcs": {name: count for name, count in rpcs.items() if name not in OURS_TO_ASK},
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files if path.is_file()),
    }


if __name__ == "__main__":
    sys.exit(main())
