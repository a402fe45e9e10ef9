"""Leave nodes that have failed in earlier runs out of a new job, if enough others are left."""

from __future__ import annotations

import time
import warnings

from muster.errors import MusterWarning
from muster.launch.plan import Prepared, script_options
from muster.rundir.node_evidence import bad_hosts
from muster.rundir.node_memory import NodeMemory
from muster.slurm import client


class BadNodesWarning(MusterWarning):
    """Nodes that have failed are left out of a job, or may be used again."""


def exclusion(prepared: Prepared) -> list[str]:
    """Return the sbatch options that exclude remembered nodes; warn about what is excluded, or cannot be.

    The groups of a hetjob have separate options: such jobs use all nodes.
    """
    spec = prepared.spec
    if not spec.avoid_bad_nodes or spec.node_memory is None or spec.groups:
        return []
    bad = bad_hosts(NodeMemory(spec.node_memory).evidence(), time.time())
    bad = bad and sorted({*bad} & {*client.node_names()})  # a site's memory may name nodes of several clusters
    if not bad:
        return []
    option = f"--exclude={','.join(filter(None, [spec.exclude, *bad]))}"
    refusal = client.refusal(prepared.run.script, script_options(prepared), [option])
    if refusal is not None:
        _warn(f"nodes that have failed may be used: without {', '.join(bad)} the job cannot run ({refusal})")
        return []
    _warn(f"nodes that have failed are not used: {', '.join(bad)} (`muster nodes --bad` shows why)")
    return [option]


def _warn(text: str) -> None:
    warnings.warn(text, BadNodesWarning, stacklevel=4)
