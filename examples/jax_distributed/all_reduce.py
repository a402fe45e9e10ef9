"""Add up numbers of all processes with JAX: one process per rank, as on GPUs or TPUs.

    muster run -f job.yaml

Each process owns a shard of one global array; XLA's collectives add the shards. On CPUs they use gloo.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def main() -> None:
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    )
    ranks = multihost_utils.process_allgather(jnp.array([jax.process_index()]))
    total = int(ranks.sum())
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {jax.device_count()} devices, sum of ranks {total}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
