"""How a job begins again: the lines of the job script that ask Slurm for it, once, and say what they did. Pure.

Slurm tells the batch script why it ends the job (tried with 22.05): `Reason=TimeLimit`, a `PreemptTime`, or a count of
restarts that has grown already, when it puts the job back by itself; a scancel shows none of them. `scontrol requeue`
works while the job is being ended, and the tasks keep their grace: so it is asked for as soon as the cause is known,
since Slurm's KILL may come before the end of everything does.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from muster.errors import Mistake
from muster.spec import JobSpec

if TYPE_CHECKING:
    from muster.launch.target import Target

# Another attempt's number is never reused, whoever began it: a requeue, a later job of the chain, Slurm itself.
NEXT_ATTEMPT = (
    '$(n=0; until mkdir "$run/attempt-$n" 2>/dev/null || [ ! -d "$run/attempt-$n" ]; do n=$((n + 1)); done; echo $n)'
)

_BEGIN = r"""# A run that has succeeded, or that a person has stopped, does not begin again: the rest ends at once.
last=$(ls "$run" | sed -n 's/^attempt-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
if [ -n "$last" ]; then
  ls "$run/attempt-$last" >/dev/null 2>&1
  if grep -qs '"state": "succeeded"' "$run/attempt-$last/outcome" ||
    grep -qs '"patient": true' "$run/attempt-$last/stop.json"; then
    echo "muster: the run has ended with attempt $last: nothing is left to do"
    ended=$(LC_ALL=C sed -n 's/.*"exit_code": *\([0-9]*\).*/\1/p' "$run/attempt-$last/outcome")
    exit "${ended:-0}"
  fi
fi
"""

_DECIDE = r"""
wanted() { # cause: whether the job is to begin again after it
  case $1 in @CAUSES@) return 0 ;; *) return 1 ;; esac
}
sequel() { # requeue, chain or none; cause; words: what follows this attempt, for whoever reads the run directory
  local words
  words=$(printf %s "$3" | LC_ALL=C tr -cd '[:print:]' | tr -d '"\\')
  printf '{"again": "%s", "cause": "%s", "note": "%s"}\n' "$1" "$2" "$words" >"$attempt/sequel.json.tmp"
  mv "$attempt/sequel.json.tmp" "$attempt/sequel.json"
}
slurm_says() { # why Slurm ends this job: requeued (by itself), timeout, preempt, or nothing
  local shown began
  shown=" $(timeout 20 scontrol --oneliner show job "$job" 2>/dev/null) "
  [[ $shown =~ \ StartTime=([^ ]+) ]] && began=${BASH_REMATCH[1]}
  if [[ $shown =~ \ Restarts=([0-9]+) ]] && ((BASH_REMATCH[1] > ${SLURM_RESTART_COUNT:-0})); then echo requeued
  elif [[ $shown == *\ Reason=TimeLimit\ * ]]; then echo timeout
  elif [[ $shown =~ \ PreemptTime=([0-9][^ ]*) && ! ${BASH_REMATCH[1]} < ${began:-} ]]; then echo preempt
  fi
}
requeue() { # cause: put the job back into the queue; recorded first, since from then on it may be ended at any time
  local said
  wanted "$1" || return
  if ((${SLURM_RESTART_COUNT:-0} >= @MOST@)); then
    note="it was started again ${SLURM_RESTART_COUNT:-0} times, and --max-requeues is @MOST@"
    return 1
  fi
  sequel requeue "$1" ""
  said=$(timeout 20 scontrol requeue "$job" 2>&1) && return
  [ "$(slurm_says)" = requeued ] && return
  rm -f "$attempt/sequel.json"
  note="scontrol requeue failed: $said"
  return 1
}
on_term() { # Slurm ends the job
  has outcome && return
  ask_to_stop 15 SIGTERM
  grep -qs '"driver": {"state": "ended"' "$(ls -v "$attempt"/status-*.json 2>/dev/null | tail -n 1)" && return
  begin_again "$(slurm_says)"
}
begin_again() { # cause
  has sequel.json && return
  case $1 in
    requeued) sequel requeue slurm "" ;;
    '') return 1 ;;
    *) requeue "$1" ;;
  esac
}
cause() { # of the end, from the outcome, and from Slurm where it was Slurm's
  if grep -qs '"patient": true' "$attempt/stop.json"; then return; fi
  case $(LC_ALL=C sed -n 's/.*"state": *"\([a-z]*\)".*/\1/p' "$attempt/outcome") in
    stopped) slurm_says ;;
    failed)
      if grep -q '"lost": true\|"end_reason": "the leader is gone' "$attempt/outcome"; then echo node-fail
      elif grep -q '"end_reason": "the driver stalled' "$attempt/outcome"; then echo stall
      else echo "exit=${recorded:-$code}"; fi ;;
  esac
}
after_the_end() { # decide what follows, unless that was done when Slurm's signal came
  local why
  has sequel.json && return
  why=$(cause)
  begin_again "$why" && return
  if [ "${link:-1}" -lt @CHAIN@ ] && ! grep -qs '"patient": true' "$attempt/stop.json" &&
    ! grep -q '"state": "succeeded"' "$attempt/outcome"; then
    sequel chain "$why" "$note"
  else
    sequel none "$why" "$note"
  fi
}
note='' link=${1:-1} job=$SLURM_JOB_ID
# The id of one task may be that of its whole array.
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
trap on_term TERM
"""


@dataclass(frozen=True)
class Restart:
    """Shell text for three places of the job script; all empty for a job that ends when it ends."""

    begin: str = ""
    decide: str = ""
    end: str = ""


NEVER = Restart()


def restart(spec: JobSpec) -> Restart:
    """What the job script needs to begin again as the job asks."""
    if not spec.requeue_on and spec.chain == 1:
        return NEVER
    causes = "|".join(map(quote, spec.requeue_on)) or "''"
    decide = _DECIDE.replace("@CAUSES@", causes).replace("@MOST@", str(spec.max_requeues))
    return Restart(_BEGIN, decide.replace("@CHAIN@", str(spec.chain)).strip("\n") + "\n", "after_the_end\n")


def check(spec: JobSpec, place: Target) -> None:
    """Refuse what could never happen."""
    if spec.chain > 1 and place.kind != "sbatch":
        where = "inside an allocation" if place.kind == "allocation" else "on one machine"
        raise Mistake(f"--chain {spec.chain}: {where} no job is submitted; chains need sbatch")
    if spec.requeue_on and "no-requeue" in spec.sbatch:
        raise Mistake("--requeue-on and --sbatch no-requeue exclude each other")
