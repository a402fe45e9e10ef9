# shellcheck shell=bash
# shellcheck disable=SC2012,SC2154 # names of attempts have no special characters; run is set by the job script

# A run that has succeeded, was stopped by a user, or failed after a program forbade restarts does not start again: this
# job ends at once.
last=$(ls "$run" | sed -n 's/^attempt-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
if [ -n "$last" ]; then
  ls "$run/attempt-$last" >/dev/null 2>&1
  if grep -qs '"state": "succeeded"' "$run/attempt-$last/outcome" ||
    grep -qs '"patient": true' "$run/attempt-$last/stop.json" || {
      [ -e "$run/attempt-$last/no-restart.json" ] && ! grep -qs '"state": "stopped"' "$run/attempt-$last/outcome"
    }; then
    echo "muster: the run has ended with attempt $last: nothing is left to do"
    ended=$(LC_ALL=C sed -n 's/.*"exit_code": *\([0-9]*\).*/\1/p' "$run/attempt-$last/outcome")
    exit "${ended:-$([ -e "$run/attempt-$last/no-restart.json" ] && echo 125 || echo 0)}"
  fi
fi
