"""Find out whether leaders can be elected on the runs directory's filesystem: of two claims one must succeed."""

from __future__ import annotations

import os

from muster.rundir.exclusive import create_exclusive, has_hard_links, release_exclusive


def probe_claims(directory: str, node_index: int) -> dict[str, object]:
    """Return whether a claim is exclusive there, and whether the filesystem has hard links. Raises OSError."""
    path = os.path.join(directory, f"claim-{node_index}")
    exclusive = create_exclusive(path, {"claim": 1}) and not create_exclusive(path, {"claim": 2})
    hard_links = has_hard_links(path)
    release_exclusive(path)
    return {"exclusive": exclusive, "hard_links": hard_links}
