"""The job script: a pure function of the run. The same script runs under sbatch, inside an allocation and locally.

It stays thin: it makes the attempt's directory and canary, starts ONE launcher step as a child, and exits with the
outcome that the run recorded. It never signals the launcher while the run is alive: srun would kill the tasks at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from muster import exit_codes
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_HEARTBEAT_S
from muster.launch.requeue import NEVER, Restart
from muster.spec.validators import PASSED_ON

# Inline in the launcher's command line, not a file: a node that does not see the run directory can still say so.
# It becomes the agent by exec, since Slurm under cgroup tracking sends SIGTERM to the task process alone. The set-up
# is the user's: it must not see these arguments as its own, nor be able to disturb them by a variable of the same name.
PRELUDE = r"""
muster_attempt=$1 muster_canary=$2 muster_python=$3 muster_setup=$4 muster_run=$5 muster_check=$6
set --
export MUSTER_RANK=${@RANK@} MUSTER_HOST=${@HOST@}
muster_say() { echo "muster: $MUSTER_HOST: $1" >&3; }
exec 3>&2
trap : @PASSED_ON@ # for the driver, which does not run yet: they must not end this shell
ls "$muster_attempt" >/dev/null 2>&1
if [ "$(cat "$muster_attempt/canary" 2>/dev/null)" != "$muster_canary" ]; then
  muster_say "cannot see $muster_attempt: the runs directory must be on a filesystem that every node shares"
  exit @UNSEEN@
fi
@HEARTBEAT@
exec >>"$muster_attempt/logs/node-$(printf %04d "$MUSTER_RANK").log" 2>&1 </dev/null
if [ -n "$muster_setup" ]; then
  trap 'muster_say "--setup ended the shell"; exit @SETUP_FAILED@' EXIT
  eval "$muster_setup" || {
    muster_code=$?
    trap - EXIT
    muster_say "--setup failed with code $muster_code"
    exit @SETUP_FAILED@
  }
  trap - EXIT
fi
if [ -n "$muster_check" ]; then
  (eval "$muster_check") || {
    muster_code=$?
    muster_last=$(tail -n 1 "$muster_attempt/logs/node-$(printf %04d "$MUSTER_RANK").log")
    muster_say "--health-check failed${muster_last:+: $muster_last} (code $muster_code)"
    exit @UNHEALTHY@
  }
fi
command -v "$muster_python" >/dev/null || { muster_say "no Python interpreter at $muster_python"; exit @NO_PYTHON@; }
trap '' @PASSED_ON@ # until the agent handles them
exec "$muster_python" -I -S "$muster_run/agent.pyz" "$muster_run" 3>&-
"""

# A node that may lead shows that it lives before its agent does: --setup may take minutes, and so may the start of a
# container. Not a child of this shell, whose own `wait` in --setup would never return. It ends with the process that
# becomes the agent, or when the agent writes the heartbeat itself.
HEARTBEAT = r"""
muster_node=$muster_attempt/nodes/$(printf %04d "${@RANK@}")
if [ "${@RANK@}" -le @STAND_INS@ ]; then
  (
    trap '' @PASSED_ON@
    muster_beat=0
    while kill -0 $$ && [ ! -e "$muster_node.json" ]; do
      muster_beat=$((muster_beat + 1))
      echo "$muster_beat" >"$muster_node.alive"
      sleep @HEARTBEAT_S@ || break
    done &
  ) </dev/null >/dev/null 2>&1 3>&-
fi
""".strip("\n")

_BODY = r"""
set -u
run=@RUN@
start=${EPOCHREALTIME:-$(date +%s.%N)}
@BEGIN@number=@ATTEMPT@
export MUSTER_JOB_START=${start/,/.} MUSTER_ATTEMPT=$number MUSTER_BACKEND=@BACKEND@
attempt=$run/attempt-$MUSTER_ATTEMPT
canary="@RUN_ID@ $MUSTER_ATTEMPT"
mkdir -p "$attempt/nodes" "$attempt/logs" || exit 125

has() { # file: listing first, since a network filesystem may remember for long that a file was not there
  ls "$attempt" >/dev/null 2>&1
  [ -s "$attempt/$1" ]
}
record() { # code, reason: the outcome, unless the run has recorded one
  has outcome && return
  rm -f "$attempt/reserve"
  local reason state=failed
  case $1 in 0) state=succeeded ;; 130 | 143) state=stopped ;; esac
  reason=$(printf %s "$2" | LC_ALL=C tr -cd '[:print:]' | tr -d '"\\')
  printf '{"exit_code": %d, "state": "%s", "end_reason": "%s"}\n' "$1" "$state" "$reason" >"$attempt/outcome.tmp"
  mv "$attempt/outcome.tmp" "$attempt/outcome"
}
lead_ended() { @LEAD_ENDED@; }
signal_asked() { LC_ALL=C sed -n 's/.*"signal": *\([0-9]*\).*/\1/p' "$attempt/stop.json"; }
last_words() { # what says why, if anything does: a node's own words, a container runtime's; else the last line
  for words in '^muster: ' '\[ERROR\]' '^FATAL: |^ch-run\[|error: pyxis: '; do
    grep -aE "$words" "$attempt/steps.log" | sort | head -n 1 | grep -a . && return
  done
  grep -av '^srun: \(job\|Job\|Force\)' "$attempt/steps.log" | tail -n 1
}
ask_to_stop() { # signal: the leader looks for this file
  [ -e "$attempt/stop.json" ] || printf '{"signal": %d, "reason": "the job received %s"}\n' "$1" "$2" \
    >"$attempt/stop.json.tmp" && mv "$attempt/stop.json.tmp" "$attempt/stop.json" 2>/dev/null
}
trap 'ask_to_stop 15 SIGTERM' TERM
trap 'ask_to_stop 2 SIGINT' INT
trap : USR1 USR2 # the agents hear it too, and the leader passes it on
@DECIDE@
touch "$attempt/steps.log" "$attempt/phases.log" "$attempt/logs/driver.log"
printf '%s\n' "$canary" >"$attempt/canary"
head -c 65536 /dev/zero >"$attempt/reserve" # so that a full disk cannot prevent the outcome from being written
@PREPARE@
# The launcher gets a session of its own: a signal to this script must not reach it.
setsid @LAUNCHER@ \
  @SHELL@ @PRELUDE@ \
  muster "$attempt" "$canary" @PYTHON@ @SETUP@ "$run" @CHECK@ </dev/null >"$attempt/steps.log" 2>&1 &
launcher=$!

tail -q -n +1 -F -s 0.2 --pid="$launcher" "$attempt/phases.log" "$attempt/logs/driver.log" 2>/dev/null &
output=$!

# What only this script can notice: that no leader ever came, or that it went before anybody had joined it; and tasks
# that hold the step after the end.
guard() {
  trap - TERM INT USR1 USR2
  exec {pause}<> <(:)
  before=
  until has outcome; do
    read -rt 0.5 -u "$pause"
    why=
    if has lead-0.json; then
      @LEAD_GONE@ || continue
      why="the leader is gone"
    elif has stop.json; then record $((128 + $(signal_asked))) "stopped before the leader was up"
    elif @EARLY_END@; then why="a task ended before the leader was up"
    fi
    # Seen twice: the leader itself knows more, and gets a moment to say it.
    [ -n "$why" ] && [ "$why" = "$before" ] && record 125 "$why: $(last_words)"
    before=$why
  done
  echo seen >>"$attempt/job-end"
  read -rt @LINGER@ -u "$pause"
  kill -TERM "$launcher"
}
guard 2>/dev/null &
guard=$!

code=125
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done # a signal to this script interrupts a wait
wait "$launcher"
left=$?
kill "$guard" 2>/dev/null
if has lead-0.json; then [ "$left" = 0 ] && code=0
elif [ ! -d "$attempt" ]; then code=$left # the run directory has vanished: the leader's own code is all there is
fi
# The leader leaves with the driver's code. Where its last words could not be written (a full disk), or are not to be
# seen yet, a success of all tasks, after there was a leader, is a success. A leader that was killed left no words.
for _ in 1 2 3 4 5; do
  if has outcome || ! has lead-0.json || ! lead_ended 'Exited with'; then break; fi
  read -rt 1 <> <(:)
done
why="the step ended without an outcome"
has lead-0.json && lead_ended '' && why="the leader is gone"
record "$code" "$why: $(last_words)"
wait "$output"@FINISH@
recorded=$(LC_ALL=C sed -n 's/.*"exit_code": *\([0-9]*\).*/\1/p' "$attempt/outcome" 2>/dev/null)
@END@{ echo ended >>"$attempt/job-end"; } 2>/dev/null # with this script Slurm ends the job
exit "${recorded:-$code}"
"""

_TASK_0_ENDED = (
    """grep -qs '"rank": 0[,}]' "$attempt/lead-0.json" &&"""
    ' grep -aEq "error: [^ ]*: tasks? 0[-,:].*$1" "$attempt/steps.log"'
)

_ANY_TASK_ENDED = "grep -aEq 'error: [^ ]*: tasks? [0-9]' \"$attempt/steps.log\""

LINGER_S = 10  # how long tasks may hold the step once the outcome is known


@dataclass(frozen=True)
class Launcher:
    """What starts one prelude per node, and how a task learns its number and its node's name from it."""

    backend: str
    words: Sequence[str]  # shell words, already quoted
    rank_variable: str
    host_variable: str
    prepare: str = ""  # shell lines before the start
    attempt: str = "0"
    finish: str = ""  # shell lines after the end
    shell: Sequence[str] = ("bash", "-c")  # what takes the prelude; words like those above
    leader_ended: str = _TASK_0_ENDED  # a shell condition on the launcher's stderr; "$1" in it: how the leader ended


@dataclass(frozen=True)
class OnNode:
    """What every node's prelude is given: the interpreter, and the user's own shell text before it."""

    python: str
    setup: str = ""
    check: str = ""  # the health check


def render(
    run_dir: str,
    run_id: str,
    node: OnNode,
    launcher: Launcher,
    directives: Sequence[str],
    restart: Restart = NEVER,
    task: str = "",
    spares: int = 0,
    succession: bool = False,
) -> str:
    """The whole script. Every value from outside is quoted here and nowhere else.

    `task` is the variable that numbers the runs of an array: each has a directory of its own, named so. With spares
    the end of a task is for the lead to judge, which may still be on its way; with succession so is the leader's own.
    """
    values = {
        "@RUN@": quote(run_dir) + (f'-"${task}"' if task else ""),
        "@RUN_ID@": run_id + (f"-${task}" if task else ""),
        "@ATTEMPT@": launcher.attempt,
        "@BACKEND@": launcher.backend,
        "@BEGIN@": restart.begin,
        "@DECIDE@": restart.decide,
        "@END@": restart.end,
        "@PREPARE@": launcher.prepare,
        "@LEAD_ENDED@": launcher.leader_ended,
        "@LEAD_GONE@": "false" if succession else "lead_ended ''",
        "@EARLY_END@": "false" if spares else _ANY_TASK_ENDED,
        "@LAUNCHER@": " ".join(launcher.words),
        "@SHELL@": " ".join(launcher.shell),
        "@FINISH@": "\n" + launcher.finish if launcher.finish else "",
        "@PYTHON@": quote(node.python),
        "@SETUP@": quote(node.setup),
        "@CHECK@": quote(node.check),
        "@LINGER@": str(LINGER_S),
        "@PRELUDE@": quote(_prelude(launcher)),
    }
    about = f"# Written by Muster for run {run_id}. What it does is explained in docs/architecture.md."
    return "\n".join(["#!/bin/bash", *directives, about]) + "\n" + _substitute(_BODY, values)


def _prelude(launcher: Launcher) -> str:
    values = {
        "@RANK@": launcher.rank_variable,
        "@HOST@": launcher.host_variable,
        "@UNSEEN@": str(exit_codes.RUN_DIR_NOT_VISIBLE),
        "@SETUP_FAILED@": str(exit_codes.SETUP_FAILED),
        "@UNHEALTHY@": str(exit_codes.HEALTH_CHECK_FAILED),
        "@NO_PYTHON@": str(exit_codes.NO_PYTHON),
        "@PASSED_ON@": " ".join(PASSED_ON),
    }
    return _substitute(PRELUDE, {**values, "@HEARTBEAT@": heartbeat(launcher.rank_variable)})


def heartbeat(rank_variable: str) -> str:
    """Shell lines that begin the heartbeat of this node, if it may lead; `muster_attempt` must be set."""
    values = {
        "@RANK@": rank_variable,
        "@STAND_INS@": str(FIRST_LEADER_CANDIDATES),
        "@HEARTBEAT_S@": f"{STARTUP_HEARTBEAT_S:g}",
        "@PASSED_ON@": " ".join(PASSED_ON),
    }
    return _substitute(HEARTBEAT, values)


def _substitute(text: str, values: dict[str, str]) -> str:
    """All at once, so that a value that happens to contain another's mark stays what it is."""
    pattern = re.compile("|".join(map(re.escape, values)))
    return pattern.sub(lambda match: values[match[0]], text)
