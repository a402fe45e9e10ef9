"""A run and its nodes survive a crash or silence of the server of a real network filesystem."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.filesystems.gluster_lab import GlusterLab, why_no_glusterfs
from tests.lab.conftest import LAB_DIR, REPOSITORY, SlurmCommand, why_no_lab
from tests.running import wait_for

pytestmark = [
    pytest.mark.filesystems,
    pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab())),
    pytest.mark.skipif(why_no_glusterfs() is not None, reason=str(why_no_glusterfs())),
]

OUTAGE_S = 20.0  # twice the lease of a leader, and longer than a client waits for a silent server
RUN_DEADLINE_S = 300.0


@pytest.fixture(scope="module", params=[None, 5.0, 30.0], ids=["default caches", "caches of 5 s", "caches of 30 s"])
def lab(request: pytest.FixtureRequest) -> Iterator[GlusterLab]:
    with GlusterLab(request.param, nodes=3, state_dir=LAB_DIR, shared=[REPOSITORY]) as lab:
        yield lab


@pytest.fixture
def slurm(lab: GlusterLab) -> Iterator[SlurmCommand]:
    directory = Path(tempfile.mkdtemp(dir=lab.plan.shared_dir))
    directory.chmod(0o755)
    command = SlurmCommand(directory, sys.executable, lab.env_additions(), lab)
    yield command
    lab.exec(["sh", "-c", "scancel $(squeue --noheader --format=%A)"], capture_output=True)
    wait_for("no job in the queue", lambda: not command.slurm("squeue", "--noheader").stdout.strip())


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["crashes", "falls silent"])
def test_a_server_that_fails_for_longer_than_a_lease_costs_no_node(
    lab: GlusterLab, slurm: SlurmCommand, fault: signal.Signals
) -> None:
    program = f"echo begun; sleep {2 * OUTAGE_S:g}; echo done"
    process = slurm.start(*slurm.run_args("--", "bash", "-c", program, nodes=3))
    slurm.wait_for_driver("begun")
    lab.signal_server(fault)
    time.sleep(OUTAGE_S)  # the length of the fault, not a wait
    if fault is signal.SIGSTOP:
        lab.signal_server(signal.SIGCONT)
    else:
        lab.restart_server()
    out, err = process.communicate(timeout=RUN_DEADLINE_S)
    assert (process.returncode, out.split()) == (0, ["begun", "done"]), err
    assert "lost" not in err
