#!/bin/bash
# Written by Muster for run train-20260101T000000-ab12. What it does is explained in docs/architecture.md.

# The braces let bash parse everything now: reading the rest of this file later may fail or hang.
{
set -u
mask=$(umask)
umask 077 # the run directory is private; programs of the user get the user's mask
run=/shared/runs/train-20260101T000000-ab12
start=${EPOCHREALTIME:-$(date +%s.%N)}
number=0
export MUSTER_JOB_START=${start/,/.} MUSTER_ATTEMPT=$number MUSTER_BACKEND=slurm
attempt=$run/attempt-$MUSTER_ATTEMPT
canary="train-20260101T000000-ab12 $MUSTER_ATTEMPT"
persist() { # command: repeat it for a minute if it fails, since a network filesystem may have lost its server
  local error
  for _ in {1..60}; do
    error=$(LC_ALL=C "$@" 2>&1) && return
    case $error in
      *'No such file'* | *denied* | *'not permitted'* | *Read-only* | *'Not a directory'* | *'No space'* | *quota*) break ;;
    esac
    read -rt 1 <> <(:)
  done
  echo "muster: the filesystem of the run directory failed: $error" >&2
  return 1
}
persist mkdir -p "$attempt/nodes" "$attempt/logs" || exit 125

has() { # file: list the directory first, since a network filesystem may cache that a file was missing
  ls "$attempt" >/dev/null 2>&1
  [ -s "$attempt/$1" ]
}
record() { # code, reason: the outcome, unless the run has recorded one
  has outcome && return
  rm -f "$attempt/reserve"
  local reason state=failed
  case $1 in 0) state=succeeded ;; 130 | 143) state=stopped ;; esac
  reason=$(printf %s "$2" | LC_ALL=C tr -cd '[:print:]' | tr -d '"\\')
  persist publish outcome "$(printf '{"exit_code": %d, "state": "%s", "end_reason": "%s"}' "$1" "$state" "$reason")"
}
publish() { # file, line
  echo "$2" >"$attempt/$1.tmp" && mv "$attempt/$1.tmp" "$attempt/$1"
}
filesystem_fails() { # whether nothing can be learned from the run directory now
  case $(LC_ALL=C ls "$attempt" 2>&1 >/dev/null) in '' | *'No such file'*) return 1 ;; esac
}
leader_ended() { grep -qs '"rank": 0[,}]' "$attempt/lead-0.json" && grep -aEq "error: [^ ]*: tasks? 0[-,:].*$1" "$attempt/steps.log"; }
tasks_succeeded() { # after a lost node, srun exits with 0 or, from some release after 22.05 on, with 1
  [ "$left" = 0 ] && return
  [ "$left" = 1 ] && grep -aq '^srun: error: Node failure on ' "$attempt/steps.log" && ! grep -aEq 'error: [^ ]*: tasks? [0-9]' "$attempt/steps.log"
}
requested_signal() { LC_ALL=C sed -n 's/.*"signal": *\([0-9]*\).*/\1/p' "$attempt/stop.json"; }
requested_reason() { LC_ALL=C sed -n 's/.*"reason": *"\([^"]*\)".*/\1/p' "$attempt/stop.json"; }
failure_message() { # the message of a node or of the container runtime if there is one, else the last that may explain it
  for pattern in '^muster: ' '\[ERROR\]' '^FATAL: |^ch-run\[|error: pyxis: '; do
    grep -aE "$pattern" "$attempt/steps.log" | sort | head -n 1 | grep -a . && return
  done
  grep -avE '^srun: ([Jj]ob|[Ff]orc|launch/|[Ww]arning|cluster configuration lacks|Check SLURM_JOB_ID)|^slurmstepd.*\*\*\* (JOB|STEP) .* CANCELLED|^$' "$attempt/steps.log" | tail -n 1
}
slurm_cause() { # why Slurm ended the step, e.g. "time limit"
  grep -aom 1 '\*\*\* STEP .* CANCELLED AT [^ ]* DUE TO [A-Z][A-Z ]*[A-Z]' "$attempt/steps.log" | sed 's/.* DUE TO //' | tr '[:upper:]' '[:lower:]'
}
fail() { # what happened: a stop that the leader could not handle is no failure
  local cause
  if has stop.json; then
    cause=$(slurm_cause)
    record $((128 + $(requested_signal))) "$(requested_reason)${cause:+: $cause}; $1"
  else
    cause=$(failure_message)
    record 125 "$1${cause:+: $cause}"
  fi
}
request_stop() { # signal, its name: the leader polls for this file
  [ -e "$attempt/stop.json" ] || printf '{"signal": %d, "reason": "the job received %s"}\n' "$1" "$2" \
    >"$attempt/stop.json.tmp" && mv "$attempt/stop.json.tmp" "$attempt/stop.json" 2>/dev/null
}
trap 'request_stop 15 SIGTERM' TERM
trap 'request_stop 2 SIGINT' INT
trap : USR1 USR2 # the agents receive them too, and the leader forwards them to the driver

persist touch "$attempt/steps.log" "$attempt/phases.log" "$attempt/logs/driver.log" || exit 125
persist publish canary "$canary" || exit 125
head -c 65536 /dev/zero >"$attempt/reserve" # so that a full disk cannot prevent the outcome from being written
unset ${!SLURM_STEP@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS \
  SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_DISTRIBUTION \
  SLURM_LABELIO SLURM_STDOUTMODE SLURM_STDERRMODE SLURM_SRUN_REDUCE_TASK_EXIT_MSG SLURM_CLUSTERS
scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 2 >"$attempt/hosts"
for _ in {1..60}; do
  { exec {steps}>"$attempt/steps.log"; } 2>/dev/null && break
  read -rt 1 <> <(:)
done
umask "$mask"
# The launcher gets a separate session: a signal to this script must not reach it.
setsid srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$(tr ',' '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sed 's/(.*//' | sort -n | head -n 1)" --cpu-bind=none --distribution=cyclic --overlap --no-kill --kill-on-bad-exit=0 --wait=0 --input=none --export=ALL --mpi=none --job-name=muster \
  bash -c '
muster_attempt=$1 muster_canary=$2 muster_python=$3 muster_setup=$4 muster_run=$5 muster_check=$6
set --
export MUSTER_RANK=${SLURM_PROCID} MUSTER_HOST=${SLURMD_NODENAME}
muster_report() { echo "muster: $MUSTER_HOST: $1" >&3; }
exec 3>&2
trap : HUP QUIT USR1 USR2 ALRM URG # they are for the driver, which does not run yet, and must not end this shell
muster_log=$muster_attempt/logs/node-$(printf %04d "$MUSTER_RANK").log
muster_tries=0 muster_line='"'"''"'"'
until # a network filesystem may have lost its server: only a file that is not there is certain
  ls "$muster_attempt" >/dev/null 2>&1
  muster_seen=$(LC_ALL=C cat "$muster_attempt/canary" 2>&1) &&
    [ "$muster_seen" = "$muster_canary" ] && { (umask 077 && : >>"$muster_log") && command exec 4>>"$muster_log"; } 2>/dev/null
do
  muster_tries=$((muster_tries + 1))
  case $muster_seen in
    "$muster_canary") muster_seen='"'"'its log cannot be written'"'"' ;;
    *'"'"': '"'"'*) ;;
    *) muster_seen='"'"'No such file'"'"' ;;
  esac
  case $muster_seen in *'"'"'No such file'"'"'* | *denied*) muster_tries=60 ;; esac
  if [ "$muster_tries" -ge 60 ]; then
    muster_report "cannot see $muster_attempt: the runs directory must be on a filesystem that every node shares"
    exit 121
  fi
  sleep 1
done
muster_node=$muster_attempt/nodes/$(printf %04d "${SLURM_PROCID}")
if [ "${SLURM_PROCID}" -le 8 ]; then
  (
    trap '"'"''"'"' HUP QUIT USR1 USR2 ALRM URG
    umask 077
    muster_beat=0
    while kill -0 $$ && [ ! -e "$muster_node.json" ]; do
      muster_beat=$((muster_beat + 1))
      echo "$muster_beat" >"$muster_node.alive"
      sleep 2 || break
    done &
  ) </dev/null >/dev/null 2>&1 3>&- 4>&-
fi
exec >&4 2>&4 4>&- </dev/null
if [ -n "$muster_setup" ]; then
  trap '"'"'muster_report "--setup ended the shell"; exit 122'"'"' EXIT
  eval "$muster_setup" || {
    muster_code=$?
    trap - EXIT
    muster_report "--setup failed with code $muster_code"
    exit 122
  }
  trap - EXIT
fi
if [ -n "$muster_check" ]; then
  (eval "$muster_check") || {
    muster_code=$?
    muster_last=$(tail -n 1 "$muster_log")
    muster_report "--health-check failed${muster_last:+: $muster_last} (code $muster_code)"
    exit 124
  }
fi
command -v "$muster_python" >/dev/null || { muster_report "no Python interpreter at $muster_python"; exit 127; }
trap '"'"''"'"' HUP QUIT USR1 USR2 ALRM URG # until the agent handles them
muster_tries=0 muster_line='"'"''"'"'
# A network filesystem may have lost its server. An image need not have any programs for this but the shell.
until { read -r muster_line <"$muster_run/agent.pyz"; } 2>/dev/null || [ -n "$muster_line" ] || [ "$muster_tries" -ge 60 ]; do
  muster_tries=$((muster_tries + 1))
  sleep 1
done
exec "$muster_python" -I -S "$muster_run/agent.pyz" "$muster_run" 3>&-
' \
  muster "$attempt" "$canary" python3 'module load cuda; source "env.sh"' "$run" '' </dev/null >&"$steps" 2>&1 {steps}>&- &
launcher=$!
umask 077

# The driver's output is not copied here: it would be stored twice, and without a limit.
echo "muster: the driver's output is in $attempt/logs/driver.log (muster logs -f train-20260101T000000-ab12)"
tail -q -n +1 -F -s 0.2 --pid="$launcher" "$attempt/phases.log" 2>/dev/null &
output=$!

# Detect what no other process can: that no leader started, that the leader ended before any agent joined it, and tasks
# that hold the step after the end.
guard() {
  trap - TERM INT USR1 USR2
  exec {pause}<> <(:)
  before=
  until has outcome; do
    read -rt 0.5 -u "$pause"
    why=
    filesystem_fails && continue
    if has lead-0.json; then
      leader_ended '' || continue
      why="the leader is gone"
    elif has stop.json; then fail "no leader was up yet"
    elif grep -aEq 'error: [^ ]*: tasks? [0-9]' "$attempt/steps.log"; then why="a task ended before the leader was up"
    fi
    # Only if seen twice: the leader knows more, and gets the time to record it.
    [ -n "$why" ] && [ "$why" = "$before" ] && fail "$why"
    before=$why
  done
  echo seen >>"$attempt/job-end"
  read -rt 10 -u "$pause"
  kill -TERM "$launcher"
}
guard 2>/dev/null &
guard=$!

code=125
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done # a signal to this script interrupts a wait
wait "$launcher"
left=$?
kill "$guard" 2>/dev/null
trouble=
for _ in {1..60}; do
  filesystem_fails || break
  trouble='; the filesystem of the run directory failed'
  read -rt 1 <> <(:)
done
if has lead-0.json; then tasks_succeeded && code=0
elif [ ! -d "$attempt" ]; then code=$left # the run directory has vanished: only the leader's exit code is left
fi
# The leader exits with the driver's code. If its outcome could not be written (a full disk) or is not visible yet, the
# success of all tasks on live nodes counts as success if there was a leader. A leader that was killed has written no outcome.
for _ in 1 2 3 4 5; do
  if has outcome || ! has lead-0.json || ! leader_ended 'Exited with'; then break; fi
  read -rt 1 <> <(:)
done
why="the step ended without an outcome"
has lead-0.json && leader_ended '' && why="the leader is gone"
if [ "$code" = 0 ]; then record 0 "$why"; else fail "$why$trouble"; fi
wait "$output"
recorded=$(LC_ALL=C sed -n 's/.*"exit_code": *\([0-9]*\).*/\1/p' "$attempt/outcome" 2>/dev/null)
{ echo ended >>"$attempt/job-end"; } 2>/dev/null # Slurm ends the job when this script exits
exit "${recorded:-$code}"
}
