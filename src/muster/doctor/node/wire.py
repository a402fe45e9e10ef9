"""Encode the reports of nodes as lines of the launcher's stdout, in which those of all nodes are mixed."""

from __future__ import annotations

import json
from typing import Any

MARK = "muster-doctor:"
LINE_CHARS = 800  # srun keeps lines of up to 1024 bytes intact and mixes parts of longer ones


def report_lines(node_index: int, report: dict[str, Any]) -> list[str]:
    """Split a report into short lines, each with node index, number and count of the parts."""
    text = json.dumps(report)
    parts = [text[at : at + LINE_CHARS] for at in range(0, len(text), LINE_CHARS)]
    return [f"{MARK} {node_index} {number} {len(parts)} {part}" for number, part in enumerate(parts)]


def reports_in(output: str) -> dict[int, dict[str, Any]]:
    """Return every complete report in the output, by node index."""
    parts: dict[int, dict[int, str]] = {}
    counts: dict[int, int] = {}
    for line in output.splitlines():
        words = line.split(" ", 4)
        if len(words) == 5 and words[0] == MARK:
            node_index = int(words[1])
            parts.setdefault(node_index, {})[int(words[2])] = words[4]
            counts[node_index] = int(words[3])
    complete = [node_index for node_index, found in sorted(parts.items()) if len(found) == counts[node_index]]
    return {
        node_index: json.loads("".join(part for _, part in sorted(parts[node_index].items())))
        for node_index in complete
    }
