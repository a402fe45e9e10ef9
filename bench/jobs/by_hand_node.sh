#!/bin/bash
# One node of a hand-started Ray cluster. Nodes signal each other through files, polled every 0.1 s. `ray start` returns
# when its node is registered, so a worker's file means that the node is alive: the cheapest possible check.
signals=$1
shift
address=$(hostname -i)
common=(--node-ip-address="$address" --num-cpus="$SLURM_CPUS_ON_NODE")
code=0
if [ "$SLURM_PROCID" -eq 0 ]; then
  # shellcheck disable=SC2086 # several options in one variable
  ray start --head --port=6379 "${common[@]}" ${HEAD_OPTIONS-} || exit 1
  echo "$address:6379" >"$signals/head.new" && mv "$signals/head.new" "$signals/head"
  for ((rank = 1; rank < SLURM_NTASKS; rank++)); do
    until [ -e "$signals/joined-$rank" ]; do sleep 0.1; done
  done
  "$@"
  code=$?
  touch "$signals/done"
else
  until [ -e "$signals/head" ]; do sleep 0.1; done
  ray start --address="$(<"$signals/head")" "${common[@]}" || exit 1
  touch "$signals/joined-$SLURM_PROCID"
  until [ -e "$signals/done" ]; do sleep 0.1; done
fi
ray stop
exit "$code"
