"""The page of the built-in checks of nodes, from their table."""

from __future__ import annotations

from tests.docs.reference.markdown import code, heading, table

from muster.agent.health.checks.space import show_bytes
from muster.lifecycle.node_checks import BYTES, LEVELS, MEDIAN, NODE_CHECKS, NodeCheck

INTRODUCTION = (
    "`--node-checks LEVEL` selects the checks of a level and of those before it, `--node-check NAME=on`, `off` or a \
threshold changes single ones ([how-to](../how-to/health-checks-and-stalls.md)). A check that does not end within its \
deadline has failed. One that has nothing to check on the node, or may not read it, is skipped."
)
TEXTS = {
    "basic": "These are the default. They take milliseconds, with GPUs the time of `nvidia-smi -L`, and fail only "
    "where a job could not run.",
    "standard": "These may need another threshold, or be left out, on some clusters.",
    "all": "These take seconds, and run only before the job. The leader compares the speeds of at least three nodes.",
}


def page() -> str:
    parts = [heading("Built-in checks of nodes", INTRODUCTION)]
    for level in LEVELS:
        rows = [
            (code(check.name), sentence(check), f"{check.deadline:g} s")
            for check in NODE_CHECKS
            if check.level == level
        ]
        parts.append(f"## {level}\n\n{TEXTS[level]}\n\n{table(('check', 'fails when', 'deadline'), rows)}\n")
    return "\n".join(parts)


def sentence(check: NodeCheck) -> str:
    """Return when a check fails, with its default threshold in bold."""
    if check.threshold is None:
        return check.fails_when
    if check.unit == BYTES:
        value = show_bytes(check.threshold)
    else:
        value = f"{check.threshold:g}{'' if check.unit == MEDIAN else ' ' + check.unit}"
        value += " " + check.unit if check.unit == MEDIAN else ""
    return check.fails_when.format(f"**{value}**")
