"""A gang that runs all-reduce with torch.distributed and resumes from its checkpoint after a restart.

    muster run -N 3 --spares 1 --procs-per-node 2 --no-ray --on-node-loss restart --restart-on-driver-failure \
        --stall-timeout 5m -- python examples/gang_allreduce.py --steps 1000

Every process finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun. On GPUs: the nccl backend, and
`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`. A rank counts as hung without output and `muster.beat()`.
"""

from __future__ import annotations

import argparse
import json
import os

import torch.distributed as dist

import torch

try:
    from muster import beat
except ImportError:

    def beat() -> None:
        """Muster is not installed on the nodes: then only output shows that a rank has not hung."""


CHECKPOINT = os.path.join(os.environ["MUSTER_OUTPUT_DIR"], "checkpoint.json")


def load() -> tuple[int, float]:
    """Return step and total of the last checkpoint; every rank reads the same."""
    if os.environ["MUSTER_RESUME"] != "1" or not os.path.exists(CHECKPOINT):
        return 0, 0.0
    with open(CHECKPOINT, encoding="utf-8") as file:
        saved = json.load(file)
    return saved["step"], saved["total"]


def save(step: int, total: float) -> None:
    """Write the checkpoint atomically."""
    with open(f"{CHECKPOINT}.tmp", "w", encoding="utf-8") as file:
        json.dump({"step": step, "total": total}, file)
    os.replace(f"{CHECKPOINT}.tmp", CHECKPOINT)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    first, total = load()
    dist.barrier()  # all ranks have read it before rank 0 writes the next
    if rank == 0:
        print(f"{size} ranks, cycle {os.environ['MUSTER_CYCLE']}, from step {first}", flush=True)
    for step in range(first, steps):
        share = torch.tensor([float(rank + 1)])
        dist.all_reduce(share)
        total += share.item()
        beat()
        if rank == 0:
            save(step + 1, total)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(f"total {total:g} after {steps} steps", flush=True)


if __name__ == "__main__":
    main()
