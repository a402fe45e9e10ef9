"""Define the job's fields for nodes that have failed before."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel

from muster.spec.flags import Flag
from muster.spec.types import Line, ShellText


def absolute_directory(value: str) -> str:
    """Return the path of a directory that means the same on every host. Raises ValueError."""
    if not value.startswith(("/", "~/")):
        raise ValueError("must be an absolute path, or begin with ~/")
    return value


class NodeMemoryFields(BaseModel):
    """What follows when a node has failed."""

    avoid_bad_nodes: Annotated[
        bool,
        Flag(
            "Exclude nodes that have failed from requeued jobs and the next jobs of a chain, and with --node-memory "
            "from new jobs, if enough others are left (default); --no-avoid-bad-nodes uses them again.",
            group="Bad nodes",
            allowed="true or false",
        ),
    ] = True
    node_memory: Annotated[
        Annotated[Line, AfterValidator(absolute_directory)] | None,
        Flag(
            "Directory in which runs record nodes that have failed, and which `muster nodes` shows, as in "
            "~/.local/state/muster/nodes; of a user or of a site, on a shared filesystem. Default: none, each run "
            "knows only its own.",
            group="Bad nodes",
            allowed="an absolute path, or one that begins with ~/",
            metavar="DIR",
        ),
    ] = None
    on_bad_node: Annotated[
        ShellText | None,
        Flag(
            "Shell code that the leader runs at the end for each bad node, with MUSTER_BAD_NODE and "
            "MUSTER_BAD_NODE_REASON, as in a site's command to drain it. Default: none.",
            group="Bad nodes",
            allowed="shell code",
            metavar="CMD",
        ),
    ] = None
