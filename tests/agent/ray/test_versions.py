"""Which releases of Ray a node takes."""

from __future__ import annotations

import pytest

from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.node import RayNode, RayPaths
from muster.agent.ray.settings import RayOptions


@pytest.mark.parametrize(
    ("version", "required", "rank", "refused", "warned"),
    [
        ("2.46.0", False, 0, False, True),
        ("2.51.2", False, 0, False, True),
        ("2.51.2", False, 7, False, False),  # the first node has said it for all
        ("2.51.2", True, 7, True, False),
        ("2.52.0", True, 0, False, False),
        ("3.0.0.dev0", True, 0, False, False),
    ],
)
async def test_a_ray_without_tokens_is_warned_about_once_and_refused_where_they_are_required(
    version: str, required: bool, rank: int, refused: bool, warned: bool
) -> None:
    options = RayOptions(cpus=1, gpus=None, dashboard=False, nodes=8, local=True, require_auth=required)
    node = RayNode(options, NodeFacts(rank, "n"), RayPaths("/tmp/muster-x/0", "/runs/x"), {}, b"token")
    notes: list[str] = []
    node.on_note = notes.append
    why = node._check_version(version)
    assert (why is not None and "--require-auth" in why) == refused
    assert bool(notes) == warned
