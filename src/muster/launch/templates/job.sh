# shellcheck shell=bash
# shellcheck disable=SC1003,SC2329 # tr reads '"\\' as intended; request_stop is called by traps
#
# The job script after its #SBATCH lines. It makes the attempt's directory and canary, starts ONE launcher step as a
# child, and exits with the outcome that the run recorded. It never signals the launcher while the run is alive: srun
# would kill the tasks at once.

# The braces let bash parse everything now: reading the rest of this file later may fail or hang.
{
set -u
mask=$(umask)
umask 077 # the run directory is private; programs of the user get the user's mask
run=__RUN__
start=${EPOCHREALTIME:-$(date +%s.%N)}
__SKIP_ENDED_RUN__
number=__ATTEMPT__
export MUSTER_JOB_START=${start/,/.} MUSTER_ATTEMPT=$number MUSTER_BACKEND=__BACKEND__
attempt=$run/attempt-$MUSTER_ATTEMPT
canary="__RUN_ID__ $MUSTER_ATTEMPT"
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
leader_ended() { __LEADER_ENDED__; }
tasks_succeeded() { # after a lost node, srun exits with 0 or, from some release after 22.05 on, with 1
  [ "$left" = 0 ] && return
  [ "$left" = 1 ] && grep -aq '^srun: error: Node failure on ' "$attempt/steps.log" && ! __ANY_TASK_FAILED__
}
requested_signal() { LC_ALL=C sed -n 's/.*"signal": *\([0-9]*\).*/\1/p' "$attempt/stop.json"; }
requested_reason() { LC_ALL=C sed -n 's/.*"reason": *"\([^"]*\)".*/\1/p' "$attempt/stop.json"; }
failure_message() { # the message of a node or of the container runtime if there is one, else the last that may explain it
  for pattern in '^muster: ' '\[ERROR\]' '^FATAL: |^ch-run\[|error: pyxis: '; do
    grep -aE "$pattern" "$attempt/steps.log" | sort | head -n 1 | grep -a . && return
  done
  grep -avE __NO_CAUSE__ "$attempt/steps.log" | tail -n 1
}
slurm_cause() { # why Slurm ended the step, e.g. "time limit"
  grep -aom 1 __CANCELLED__ "$attempt/steps.log" | sed 's/.* DUE TO //' | tr '[:upper:]' '[:lower:]'
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
__REQUEUE__

persist touch "$attempt/steps.log" "$attempt/phases.log" "$attempt/logs/driver.log" || exit 125
persist publish canary "$canary" || exit 125
head -c 65536 /dev/zero >"$attempt/reserve" # so that a full disk cannot prevent the outcome from being written
__PREPARE__
for _ in {1..60}; do
  { exec {steps}>"$attempt/steps.log"; } 2>/dev/null && break
  read -rt 1 <> <(:)
done
umask "$mask"
# The launcher gets a separate session: a signal to this script must not reach it.
setsid __LAUNCHER__ \
  __SHELL__ __PRELUDE__ \
  muster "$attempt" "$canary" __PYTHON__ __SETUP__ "$run" __CHECK__ </dev/null >&"$steps" 2>&1 {steps}>&- &
launcher=$!
umask 077

# The driver's output is not copied here: it would be stored twice, and without a limit.
echo "muster: the driver's output is in $attempt/logs/driver.log (muster logs -f __RUN_ID__)"
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
      __LEADER_GONE__ || continue
      why="the leader is gone"
    elif has stop.json; then fail "no leader was up yet"
    elif __TASK_ENDED__; then why="a task ended before the leader was up"
    fi
    # Only if seen twice: the leader knows more, and gets the time to record it.
    [ -n "$why" ] && [ "$why" = "$before" ] && fail "$why"
    before=$why
  done
  echo seen >>"$attempt/job-end"
  read -rt __STEP_END_TIMEOUT_S__ -u "$pause"
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
__CLEANUP__
recorded=$(LC_ALL=C sed -n 's/.*"exit_code": *\([0-9]*\).*/\1/p' "$attempt/outcome" 2>/dev/null)
__AFTER_THE_END__
{ echo ended >>"$attempt/job-end"; } 2>/dev/null # Slurm ends the job when this script exits
exit "${recorded:-$code}"
}
