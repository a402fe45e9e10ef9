"""Train a small network with Ray Train; a requeued run resumes from the last checkpoint.

Run it with `muster run -f job.yaml`.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import ray
import ray.train
import ray.train.torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig

import torch

INPUTS, BATCH = 8, 64


def train(config: dict[str, int]) -> None:
    """Run on each worker."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(INPUTS, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            saved = torch.load(os.path.join(directory, "state.pt"), weights_only=True)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    model = ray.train.torch.prepare_model(network)
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(first, config["epochs"]):
        loss = torch.zeros(1)
        for step in range(20):
            generator = torch.Generator().manual_seed(1000 * epoch + 100 * rank + step)
            inputs = torch.rand(BATCH, INPUTS, generator=generator)
            loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), inputs.sum(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            new = None
            if rank == 0:
                state = {"epoch": epoch + 1, "model": network.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, os.path.join(directory, "state.pt"))
                new = Checkpoint.from_directory(directory)
            ray.train.report({"epoch": epoch + 1, "first": first, "loss": loss.item()}, checkpoint=new)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    ray.init(log_to_driver=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=len(ray.nodes()), use_gpu="GPU" in ray.cluster_resources()),
        # The directory belongs to the run and is shared by all nodes. Ray Train resumes a run of the same name in it.
        run_config=RunConfig(
            name="train",
            storage_path=os.environ["MUSTER_OUTPUT_DIR"],
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    metrics = trainer.fit().metrics
    if metrics is None:
        print("nothing left to train")
    else:
        print(f"epochs {metrics['first']} to {metrics['epoch']}, loss {metrics['loss']:.4f}")


if __name__ == "__main__":
    main()
