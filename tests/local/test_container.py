"""`muster run --container-image` works on this machine with Charliecloud."""

from __future__ import annotations

import shutil
import signal

import pytest
from tests.image import MARK, build_image
from tests.running import MusterCommand

pytestmark = pytest.mark.skipif(shutil.which("ch-run") is None, reason="charliecloud is not installed")


def test_virtual_nodes_run_in_the_container_and_end_with_it(muster: MusterCommand) -> None:
    image = build_image(muster.cwd / "image")
    driver = f"ls {MARK}; trap 'echo saving; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    kind = ["run", "--backend", "local", "--no-ray", "--nodes", "2", "--container-image", str(image)]
    process = muster.start(*kind, "--container-runtime", "charliecloud", "--", "sh", "-c", driver)
    muster.wait_for_driver("ready")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 9, err
    assert out.startswith(f"{MARK}\nready\n") and "saving" in out
