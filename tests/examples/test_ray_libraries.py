"""Examples for Ray Train, Tune, Data and Serve run on two nodes, and continue where an earlier attempt stopped."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from tests.examples.running import lines_of, run_example
from tests.running import MusterCommand

# What the libraries need beyond Ray, and only they install.
LIBRARIES = ("pyarrow", "pandas", "starlette", "torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in LIBRARIES),
        reason="needs ray[data,serve,train,tune] and torch (make test-examples)",
    ),
]


def test_train_reports_every_epoch_and_keeps_checkpoints_in_the_output(muster: MusterCommand) -> None:
    done = run_example(muster, "ray_train", "--", "python", "train.py", "--epochs", "3")
    assert re.fullmatch(r"epochs 0 to 3, loss \d+\.\d+", lines_of(done)[-1])
    assert list(muster.run_dir().glob("output/train/checkpoint*/state.pt"))


def test_train_resumes_in_the_directory_of_an_earlier_attempt(muster: MusterCommand) -> None:
    """Ray Train continues a run of the same name: here two drivers of one run, as two attempts are."""
    both = "python train.py --epochs 2 && python train.py --epochs 4"
    done = run_example(muster, "ray_train", "--", "bash", "-c", both)
    assert re.fullmatch(r"epochs 2 to 4, loss \d+\.\d+", lines_of(done)[-1])


def test_tune_finds_the_best_trial_and_restores_a_search(muster: MusterCommand) -> None:
    both = "python search.py && python search.py"
    done = run_example(muster, "ray_tune", "--spares", "0", "--on-node-loss", "fail", "--", "bash", "-c", both)
    assert lines_of(done).count("4 trials, best x 1.4") == 2


def test_data_writes_the_predictions(muster: MusterCommand) -> None:
    command = ["python", "batch_inference.py", "--rows", "1000"]
    done = run_example(muster, "ray_data", "--spares", "0", "--on-node-loss", "fail", "--", *command)
    assert f"1000 predictions, sum {sum(range(1000)) * 2}" in lines_of(done)
    assert list(muster.run_dir().glob("output/predictions/*.parquet"))


def test_serve_answers_on_every_node(muster: MusterCommand) -> None:
    done = run_example(muster, "ray_serve")
    answers = [json.loads(line) for line in lines_of(done) if line.startswith("{")]
    assert answers == [{"words": 6}] * 2
