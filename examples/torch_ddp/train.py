"""Train a small network with DistributedDataParallel, and resume from the last checkpoint after a restart or a requeue.

    muster run -f job.yaml

The network learns the sum of its inputs. On nodes with GPUs each rank uses the one of its LOCAL_RANK, and NCCL.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import muster
import torch

CHECKPOINT = os.path.join(os.environ["MUSTER_OUTPUT_DIR"], "checkpoint.pt")
INPUTS, BATCH = 8, 64


def choose_device() -> torch.device:
    """Return the GPU of this rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda")


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Load the last checkpoint into both, and return its step. MUSTER_RESUME is 1 after a restart or a requeue."""
    if os.environ["MUSTER_RESUME"] != "1" or not os.path.exists(CHECKPOINT):
        return 0
    saved = torch.load(CHECKPOINT, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a checkpoint atomically: if the node fails meanwhile, the previous one remains valid."""
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{CHECKPOINT}.new")
    os.replace(f"{CHECKPOINT}.new", CHECKPOINT)


def batch_of(step: int, rank: int, size: int, device: torch.device) -> torch.Tensor:
    """Return this rank's inputs of a step: the same after a restart, others on each rank."""
    generator = torch.Generator().manual_seed(step * size + rank)
    return torch.rand(BATCH, INPUTS, generator=generator).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--fail-at", type=int, help="step at which rank 1 fails, once: to see the restart")
    options = parser.parse_args()
    cycle = int(os.environ["MUSTER_CYCLE"])
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(INPUTS, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    first = load(network, optimizer, device)
    dist.barrier()  # all ranks have read the checkpoint before rank 0 writes the next
    model = DistributedDataParallel(network)
    if rank == 0:
        print(f"cycle {cycle}: {size} ranks on {device.type}, from step {first}", flush=True)
    loss = torch.zeros(1)
    for step in range(first, options.steps):
        if (step, rank, cycle) == (options.fail_at, 1, 0):
            sys.exit(f"rank 1 fails at step {step}")
        inputs = batch_of(step, rank, size, device)
        loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), inputs.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        muster.beat(step=step)
        if rank == 0 and (step + 1) % options.every == 0:
            save(network, optimizer, step + 1)
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if rank == 0:
        save(network, optimizer, options.steps)
        print(f"done: loss {loss.item():.4f} after {options.steps} steps", flush=True)
    dist.barrier()  # a rank that leaves while others still communicate would abort them
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
