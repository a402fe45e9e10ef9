"""Run a model over a dataset with Ray Data, and write the predictions as Parquet files.

    muster run -f job.yaml

The "model" doubles its input. As with a real one, each actor loads it once and predicts batches.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import ray
import ray.data


class Model:
    """A model in an actor; give `num_gpus=1` to `map_batches` for one on a GPU."""

    def __init__(self) -> None:
        self.weight = 2

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"input": batch["id"], "prediction": batch["id"] * self.weight}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000)
    rows = parser.parse_args().rows
    ray.init(log_to_driver=False)
    output = os.path.join(os.environ["MUSTER_OUTPUT_DIR"], "predictions")
    # The actors reserve no CPU, so that tasks which read and write fit beside them on nodes with a single one.
    predictions = ray.data.range(rows, override_num_blocks=8).map_batches(
        Model, batch_size=256, compute=ray.data.ActorPoolStrategy(size=2), num_cpus=0
    )
    predictions.write_parquet(output)
    found = ray.data.read_parquet(output)
    print(f"{found.count()} predictions, sum {found.sum('prediction')}")


if __name__ == "__main__":
    main()
