"""Ray's dashboard is off by default, listens on loopback and requires the run's token."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from tests.running import RAY_EXTRAS, MusterCommand, wait_for

from muster.agent.net.addresses import host_addresses

pytestmark = pytest.mark.ray

READY = "import time; print('ready', flush=True); time.sleep(3600)"


def answer(port: int, token: str | None) -> int | None:
    """The status; None while nothing listens: a driver does not wait for the dashboard."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/version")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_the_dashboard_answers_the_run_s_token_on_loopback_alone(muster: MusterCommand) -> None:
    if not RAY_EXTRAS.exists():
        pytest.skip("the dashboard's packages are not installed")
    options = ("--dashboard", "--env", f"PYTHONPATH={RAY_EXTRAS}")
    process = muster.start(*muster.local_args(*options, "--", "python", "-c", READY, nodes=1, ray=True))
    muster.wait_for_driver("ready")
    port = muster.status()["ray"]["dashboard"]["port"]
    token = (muster.run_dir() / "ray-token").read_text()
    assert f"http://127.0.0.1:{port}" in (muster.run_dir() / "attempt-0" / "phases.log").read_text()
    assert wait_for("the dashboard", lambda: answer(port, token) == 200)
    assert answer(port, None) == 401
    assert answer(port, "0" * len(token)) == 403
    for address in host_addresses():
        with pytest.raises(OSError):
            socket.create_connection((address, port), timeout=5)
    process.terminate()
    process.communicate(timeout=180)


def test_a_dashboard_that_cannot_be_is_a_failure_that_says_what_to_install(muster: MusterCommand) -> None:
    done = muster.local("--dashboard", "--", "true", nodes=1, ray=True)
    if done.returncode == 0:
        pytest.skip("this Ray has the dashboard's packages")
    assert done.returncode == 125
    assert "needs the packages of ray[default]" in muster.status()["end_reason"]
