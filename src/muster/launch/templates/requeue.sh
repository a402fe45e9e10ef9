# shellcheck shell=bash
# shellcheck disable=SC1003,SC2012,SC2154,SC2170 # tr reads '"\\' as intended; status files have plain names; attempt is
# set by the job script; the length of the chain is a placeholder
#
# Requeue this job, at most once, and record in sequel.json what follows the attempt.
#
# Slurm shows the batch script why it ends the job (tried with 22.05): `Reason=TimeLimit`, a `PreemptTime`, or a count of
# restarts that has already grown when Slurm requeues the job itself; a scancel shows none of them. `scontrol requeue`
# works while the job is being ended, and the tasks keep their grace period: it is called as soon as the cause is known,
# since Slurm may send SIGKILL before the run has ended.

wanted() { # cause: whether the job is to be requeued after it
  case $1 in __CAUSES__) return 0 ;; *) return 1 ;; esac
}
record_next() { # requeue, chain or none; cause; note: record in sequel.json what follows this attempt
  local text
  text=$(printf %s "$3" | LC_ALL=C tr -cd '[:print:]' | tr -d '"\\')
  printf '{"again": "%s", "cause": "%s", "note": "%s"}\n' "$1" "$2" "$text" >"$attempt/sequel.json.tmp"
  mv "$attempt/sequel.json.tmp" "$attempt/sequel.json"
}
slurm_reason() { # print why Slurm ends this job: requeued (by Slurm itself), timeout, preempt, or nothing
  local shown began
  shown=" $(timeout 20 scontrol --oneliner show job "$job" 2>/dev/null) "
  [[ $shown =~ \ StartTime=([^ ]+) ]] && began=${BASH_REMATCH[1]}
  if [[ $shown =~ \ Restarts=([0-9]+) ]] && ((BASH_REMATCH[1] > ${SLURM_RESTART_COUNT:-0})); then echo requeued
  elif [[ $shown == *\ Reason=TimeLimit\ * ]]; then echo timeout
  elif [[ $shown =~ \ PreemptTime=([0-9][^ ]*) && ! ${BASH_REMATCH[1]} < ${began:-} ]]; then echo preempt
  fi
}
requeue() { # cause: requeue the job; recorded first, since the job may be killed at any time afterwards
  local output
  wanted "$1" || return
  if ((${SLURM_RESTART_COUNT:-0} >= __MAX_REQUEUES__)); then
    note="it was started again ${SLURM_RESTART_COUNT:-0} times, and --max-requeues is __MAX_REQUEUES__"
    return 1
  fi
  record_next requeue "$1" ""
  output=$(timeout 20 scontrol requeue "$job" 2>&1) && return
  [ "$(slurm_reason)" = requeued ] && return
  rm -f "$attempt/sequel.json"
  note="scontrol requeue failed: $output"
  return 1
}
avoid_bad_nodes() { # job: exclude from it the nodes that have failed in this run, unless too few others are left
  local bad all excluded shown output own=' ExcNodeList=([^ (]+)'
  bad=$(cat "$attempt/avoided-nodes" 2>/dev/null)
  if ! __AVOID__ || [ -z "$bad" ]; then return; fi
  shown=" $(timeout 20 scontrol --oneliner show job "$1" 2>/dev/null) "
  all=$bad
  [[ $shown =~ $own ]] && all=$bad,${BASH_REMATCH[1]}
  if ! output=$(timeout 20 sbatch --test-only --exclude="$all" "$run/job.sh" 2>&1); then
    excluded="could not be excluded from job $1, and may be used again: ${output##*error: }"
  elif output=$(timeout 20 scontrol update JobId="$1" ExcNodeList="$all" 2>&1); then
    excluded="are excluded from job $1"
  else
    excluded="could not be excluded from job $1: $output"
  fi
  echo "muster: nodes that failed ($bad) $excluded" | tee -a "$attempt/phases.log"
}
on_term() { # Slurm ends the job
  has outcome && return
  request_stop 15 SIGTERM
  grep -qs '"driver": {"state": "ended"' "$(ls -v "$attempt"/status-*.json 2>/dev/null | tail -n 1)" && return
  start_again "$(slurm_reason)"
}
start_again() { # cause
  has sequel.json && return
  case $1 in
    requeued) record_next requeue slurm "" ;;
    '') return 1 ;;
    *) requeue "$1" ;;
  esac
}
cause() { # print the cause of the end, from the outcome or, if Slurm ended the job, from Slurm
  if grep -qs '"patient": true' "$attempt/stop.json"; then return; fi
  case $(LC_ALL=C sed -n 's/.*"state": *"\([a-z]*\)".*/\1/p' "$attempt/outcome") in
    stopped) slurm_reason ;;
    failed)
      if grep -q '"lost": true\|"end_reason": "the leader is gone' "$attempt/outcome"; then echo node-fail
      elif grep -q '"end_reason": "the \(driver stalled\|run hangs\)' "$attempt/outcome"; then echo stall
      else echo "exit=${recorded:-$code}"; fi ;;
  esac
}
next_job() { # print the job of the chain that follows this one
  LC_ALL=C sed -n 's/.*"job_ids": *\[\([^]]*\)\].*/\1/p' "$run/submission.json" | tr -d '" ' | tr , '\n' |
    sed -n "$((link + 1))p"
}
after_the_end() { # decide what follows, unless that was decided when Slurm's signal arrived
  local why following
  has sequel.json || decide
  case $(LC_ALL=C sed -n 's/.*"again": "\([a-z]*\)".*/\1/p' "$attempt/sequel.json") in
    requeue) avoid_bad_nodes "$job" ;;
    chain) following=$(next_job) && [ -n "$following" ] && avoid_bad_nodes "$following" ;;
  esac
}
forbidden() { # print why a program of this attempt has forbidden restarts, unless Slurm or a user has ended the run
  if grep -qs '"state": "stopped"' "$attempt/outcome"; then return 1; fi
  LC_ALL=C sed -n 's/^{"reason": "\(.*\)"}$/\1/p' "$attempt/no-restart.json" 2>/dev/null | grep .
}
decide() { # record what follows
  why=$(cause)
  if note=$(forbidden); then
    record_next none "$why" "a program has forbidden it: $note"
    return
  fi
  start_again "$why" && return
  if [ "${link:-1}" -lt __CHAIN__ ] && ! grep -qs '"patient": true' "$attempt/stop.json" &&
    ! grep -q '"state": "succeeded"' "$attempt/outcome"; then
    record_next chain "$why" "$note"
  else
    record_next none "$why" "$note"
  fi
}
note='' link=${1:-1} job=$SLURM_JOB_ID
# The id of one task may be that of its whole array.
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
trap on_term TERM
