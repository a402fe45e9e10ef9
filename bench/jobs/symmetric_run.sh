#!/bin/bash
# The batch script that Ray documents for `ray symmetric-run` on Slurm. The batch script runs on the first node.
# $1 directory of this round, shared by the nodes; $2 this directory; $3... the driver.
echo "$EPOCHREALTIME" >"$1/job_start"
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --cpus-per-task="$SLURM_CPUS_ON_NODE" \
  ray symmetric-run --address "$(hostname -i):6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus="$SLURM_CPUS_ON_NODE" -- "${@:3}"
