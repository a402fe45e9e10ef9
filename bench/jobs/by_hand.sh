#!/bin/bash
# Hand-written batch script that starts Ray: one srun, the role from the task's number.
# $1 directory of this round, shared by the nodes; $2 this directory; $3... the driver; HEAD_OPTIONS of the head.
echo "$EPOCHREALTIME" >"$1/job_start"
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --cpus-per-task="$SLURM_CPUS_ON_NODE" --kill-on-bad-exit=1 bash "$2/by_hand_node.sh" "$1" "${@:3}"
