"""A driver that resumes from its checkpoint: it saves at intervals and on SIGUSR2, and resumes after a requeue.

    muster run -N 2 --no-ray --signal USR2@120 --requeue-on timeout,preempt -- python examples/resume.py --steps 100000

`MUSTER_OUTPUT_DIR` belongs to the run and is shared by all attempts, `MUSTER_RESUME` is 1 after an earlier attempt, and
`MUSTER_RUN_ID` is the same in all attempts: use it as the id of anything that spans requeues, such as a W&B run.
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
    """Write the checkpoint atomically: if this process is killed meanwhile, the previous one remains valid."""
    temporary = f"{CHECKPOINT}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"step": step, "total": total}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, CHECKPOINT)


def load() -> tuple[int, float]:
    """Return step and total of the last checkpoint, or zeros if there is none."""
    if os.environ.get("MUSTER_RESUME") != "1" or not os.path.exists(CHECKPOINT):
        print("starting at step 0", flush=True)
        return 0, 0.0
    with open(CHECKPOINT, encoding="utf-8") as file:
        saved = json.load(file)
    print(f"resumed run {os.environ['MUSTER_RUN_ID']} at step {saved['step']}", flush=True)
    return saved["step"], saved["total"]


def start_tracking() -> None:
    """Use one W&B run for all attempts."""
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
    # Install handlers first: a signal without a handler would kill this process. The handler only records the signal,
    # since a checkpoint is written between two steps, never within one.
    received: list[int] = []
    for signum in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: received.append(number))
    start_tracking()
    step, total = load()
    while step < options.steps:
        time.sleep(options.step_seconds)  # the work
        step, total = step + 1, total + step
        if received or step % options.every == 0:
            save(step, total)
            print(f"checkpoint at step {step}{' on request' if received else ''}", flush=True)
        if signal.SIGTERM in received:
            sys.exit(128 + signal.SIGTERM)
        received.clear()
    save(step, total)
    print(f"done: {total:.0f} after {step} steps", flush=True)


if __name__ == "__main__":
    main()
