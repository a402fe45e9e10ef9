"""PyTorch examples: ranks work together, and after a failure they resume from the last checkpoint."""

from __future__ import annotations

import importlib.util
import re
import shutil

import pytest
from tests.examples.running import EXAMPLES, lines_of, run_example
from tests.running import MusterCommand

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.mark.slow
def test_ranks_resume_from_the_checkpoint_after_one_of_them_failed(muster: MusterCommand) -> None:
    command = ["--spares", "0", "--", "python", "train.py", "--steps", "40", "--every", "10", "--fail-at", "25"]
    done = run_example(muster, "torch_ddp", *command)
    lines = lines_of(done)
    assert len([line for line in lines if re.fullmatch(r"done: loss \d+\.\d+ after 40 steps", line)]) == 1, lines
    started = [line for line in lines if line.startswith("cycle ")]
    assert started == ["cycle 0: 4 ranks on cpu, from step 0", "cycle 1: 4 ranks on cpu, from step 20"]
    assert "rank 1 fails at step 25" in muster.rank_output(1).read_text()


def test_ranks_of_a_gang_add_their_shares(muster: MusterCommand) -> None:
    shutil.copy(EXAMPLES / "gang_allreduce.py", muster.cwd)
    command = ["python", "gang_allreduce.py", "--steps", "3"]
    done = muster.local("--procs-per-node", "1", "--", *command)
    assert "total 9 after 3 steps" in lines_of(done)
