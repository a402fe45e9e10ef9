"""Access to the dashboard of a run from the user's machine."""

from __future__ import annotations

from typing import Any

import pytest

from muster.runs.tunnels import dashboard_access


def status(backend: str, dashboard: Any) -> dict[str, Any]:
    return {"backend": backend, "ray": {"address": "10.0.0.1:6379", "dashboard": dashboard}}


def test_on_slurm_a_tunnel_through_this_host_comes_first() -> None:
    found = dashboard_access(status("slurm", {"host": "n1", "port": 24005}))
    assert found is not None and found["address"] == "http://127.0.0.1:24005"
    assert found["command"].startswith("ssh -N -L 24005:127.0.0.1:24005 -J ") and found["command"].endswith(" n1")


def test_on_one_machine_the_address_is_enough() -> None:
    assert dashboard_access(status("local", {"host": "vm", "port": 8265})) == {
        "address": "http://127.0.0.1:8265",
        "command": "",
    }


@pytest.mark.parametrize("dashboard", [None, {}, {"port": "x"}, [], "n1"])
def test_without_a_dashboard_there_is_no_line(dashboard: Any) -> None:
    assert dashboard_access(status("slurm", dashboard)) is None
    assert dashboard_access({"ray": None}) is None


def test_a_host_that_tries_to_be_more_than_a_name_is_quoted() -> None:
    found = dashboard_access(status("slurm", {"host": "n1; rm -rf ~", "port": 24005}))
    assert found is not None and found["command"].endswith(" 'n1; rm -rf ~'")
