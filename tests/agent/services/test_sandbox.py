"""Ports and members of a sandbox that runs as a service."""

from __future__ import annotations

import json
from pathlib import Path

from muster.agent.services import sandbox


def test_the_client_port_may_be_fixed_and_the_peer_port_is_always_free() -> None:
    assert sandbox.ports({}) == {"http": "auto", "between": "auto"}
    assert sandbox.ports({"http": 6000, "other": 1}) == {"http": 6000, "between": "auto"}


def test_the_members_file_is_replaced_with_each_version(tmp_path: Path) -> None:
    for version, endpoints in ((1, ["http://a:1"]), (2, [])):
        sandbox.write_members(str(tmp_path), version, endpoints)
        found = json.loads((tmp_path / sandbox.MEMBERS_FILE).read_text())
        assert found == {"version": version, "endpoints": endpoints}
