"""A driver that goes on where it stopped: checkpoints at intervals and on SIGUSR2, resumes after a requeue.

    muster run -N 2 --no-ray --signal USR2@120 --requeue-on timeout,preempt -- python examples/resume.py --steps 100000

`MUSTER_OUTPUT_DIR` is the run's own and outlives every attempt, `MUSTER_RESUME` is 1 when the run was started before,
and `MUSTER_RUN_ID` never changes: a fit name for whatever must stay one thing over requeues, as a run of W&B.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time

CHECKPOINT = os.path.join(os.environ["MUSTER_OUTPUT_DIR"], "checkpoint.json")


def save(step: int, total: float) -> None:
    """Whole or not at all: whatever ends this process meanwhile, the checkpoint before stays good."""
    temporary = f"{CHECKPOINT}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"step": step, "total": total}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, CHECKPOINT)


def load() -> tuple[int, float]:
    """Where the attempt before came to; from the beginning in a first attempt, or if that left no checkpoint."""
    if os.environ.get("MUSTER_RESUME") != "1" or not os.path.exists(CHECKPOINT):
        print("begins at step 0", flush=True)
        return 0, 0.0
    with open(CHECKPOINT, encoding="utf-8") as file:
        saved = json.load(file)
    print(f"resumed run {os.environ['MUSTER_RUN_ID']} at step {saved['step']}", flush=True)
    return saved["step"], saved["total"]


def start_tracking() -> None:
    """One run of W&B's, whatever the number of attempts."""
    os.environ.setdefault("WANDB_RUN_ID", os.environ["MUSTER_RUN_ID"])
    try:
        import wandb
    except ImportError:
        return
    wandb.init(id=os.environ["WANDB_RUN_ID"], resume="allow")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    options = parser.parse_args()
    # Before anything that takes time: a signal without a handler would end us. The handler only notes it, since a
    # checkpoint is made between two steps, never within one.
    asked: list[int] = []
    for signum in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: asked.append(number))
    start_tracking()
    step, total = load()
    while step < options.steps:
        time.sleep(options.step_seconds)  # the work
        step, total = step + 1, total + step
        if asked or step % options.every == 0:
            save(step, total)
            print(f"checkpoint at step {step}{' on request' if asked else ''}", flush=True)
        if signal.SIGTERM in asked:
            sys.exit(128 + signal.SIGTERM)
        asked.clear()
    save(step, total)
    print(f"done: {total:.0f} after {step} steps", flush=True)


if __name__ == "__main__":
    main()
