"""Search a parameter with Ray Tune; a requeued run continues with the trials that are not finished.

Run it with `muster run -f job.yaml`.
"""

from __future__ import annotations

import os

import ray
from ray import tune

STORAGE = os.environ["MUSTER_OUTPUT_DIR"]


def objective(config: dict[str, float]) -> dict[str, float]:
    """Return the score of one trial: the square root of two has the lowest."""
    return {"score": abs(config["x"] ** 2 - 2)}


def main() -> None:
    ray.init(log_to_driver=False)
    search = os.path.join(STORAGE, "search")
    trainable = tune.with_resources(objective, {"cpu": 0.5})
    if tune.Tuner.can_restore(search):
        tuner = tune.Tuner.restore(search, trainable, resume_errored=True)
    else:
        tuner = tune.Tuner(
            trainable,
            param_space={"x": tune.grid_search([1.0, 1.2, 1.4, 1.6])},
            tune_config=tune.TuneConfig(metric="score", mode="min"),
            run_config=tune.RunConfig(name="search", storage_path=STORAGE, verbose=0),
        )
    results = tuner.fit()
    best = results.get_best_result("score", "min")
    print(f"{len(results)} trials, best x {best.config['x']}")


if __name__ == "__main__":
    main()
