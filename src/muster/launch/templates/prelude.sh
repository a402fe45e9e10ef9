# shellcheck shell=sh
# shellcheck disable=SC2086,SC2242 # task numbers and host names need no quotes; the exit codes are placeholders
#
# The prelude is the task on every node. It becomes the agent by exec, because Slurm under cgroup tracking sends SIGTERM
# to the task process only. It is passed on the launcher's command line, not as a file, so that a node that cannot see
# the run directory can report that. --setup is the user's code: it does not get these arguments, and the prefix muster_
# keeps its variables apart from those used here.

muster_attempt=$1 muster_canary=$2 muster_python=$3 muster_setup=$4 muster_run=$5 muster_check=$6
set --
export MUSTER_RANK=${__RANK_VARIABLE__} MUSTER_HOST=${__HOST_VARIABLE__}
muster_report() { echo "muster: $MUSTER_HOST: $1" >&3; }
exec 3>&2
trap : __FORWARDED_SIGNALS__ # they are for the driver, which does not run yet, and must not end this shell
muster_log=$muster_attempt/logs/node-$(printf %04d "$MUSTER_RANK").log
muster_tries=0 muster_line=''
until # a network filesystem may have lost its server: only a file that is not there is certain
  ls "$muster_attempt" >/dev/null 2>&1
  muster_seen=$(LC_ALL=C cat "$muster_attempt/canary" 2>&1) &&
    [ "$muster_seen" = "$muster_canary" ] && { (umask 077 && : >>"$muster_log") && command exec 4>>"$muster_log"; } 2>/dev/null
do
  muster_tries=$((muster_tries + 1))
  case $muster_seen in
    "$muster_canary") muster_seen='its log cannot be written' ;;
    *': '*) ;;
    *) muster_seen='No such file' ;;
  esac
  case $muster_seen in *'No such file'* | *denied*) muster_tries=60 ;; esac
  if [ "$muster_tries" -ge 60 ]; then
    muster_report "cannot see $muster_attempt: the runs directory must be on a filesystem that every node shares"
    exit __UNSEEN__
  fi
  sleep 1
done
__HEARTBEAT__
exec >&4 2>&4 4>&- </dev/null
if [ -n "$muster_setup" ]; then
  trap 'muster_report "--setup ended the shell"; exit __SETUP_FAILED__' EXIT
  eval "$muster_setup" || {
    muster_code=$?
    trap - EXIT
    muster_report "--setup failed with code $muster_code"
    exit __SETUP_FAILED__
  }
  trap - EXIT
fi
if [ -n "$muster_check" ]; then
  (eval "$muster_check") || {
    muster_code=$?
    muster_last=$(tail -n 1 "$muster_log")
    muster_report "--health-check failed${muster_last:+: $muster_last} (code $muster_code)"
    exit __UNHEALTHY__
  }
fi
command -v "$muster_python" >/dev/null || { muster_report "no Python interpreter at $muster_python"; exit __NO_PYTHON__; }
trap '' __FORWARDED_SIGNALS__ # until the agent handles them
muster_tries=0 muster_line=''
# A network filesystem may have lost its server. An image need not have any programs for this but the shell.
until { read -r muster_line <"$muster_run/agent.pyz"; } 2>/dev/null || [ -n "$muster_line" ] || [ "$muster_tries" -ge 60 ]; do
  muster_tries=$((muster_tries + 1))
  sleep 1
done
exec "$muster_python" -I -S "$muster_run/agent.pyz" "$muster_run" 3>&-
