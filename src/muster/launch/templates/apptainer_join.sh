# shellcheck shell=sh
#
# Runs on a node and starts a command in the container of its agent: $1 is the run's id, $2 the node's index, $3 the agent's
# pid, as it is inside. A user's container has its own user namespace: processes of another one may not look at the
# agent, so a second container of the image would not do. Users who may not enter the first one (Apptainer was
# installed setuid root, which makes no user namespace) get a second one.

muster_run=$1 muster_node=$2 muster_pid=$3
shift 3
muster_here() { [ "$(readlink "$muster_agent/ns/$1")" = "$(readlink "/proc/self/ns/$1")" ]; }
# shellcheck disable=SC2013 # the names have no blanks
for muster_agent in $(grep -lE "^NSpid:(.*[[:space:]])?$muster_pid\$" /proc/[0-9]*/status 2>/dev/null); do
  muster_agent=${muster_agent%/status}
  muster_words=$(cat "$muster_agent/cmdline" "$muster_agent/environ" 2>/dev/null | tr '\0' '\n')
  case "
$muster_words
" in
    *"/$muster_run/agent.pyz
"*"
MUSTER_RANK=$muster_node
"*) ;;
    *) continue ;;
  esac
  muster_nsenter=$(command -v nsenter) || break
  if muster_here user; then
    [ "$(id -u)" = 0 ] || break
    muster_spaces=--mount
  else
    muster_spaces="--mount --user --preserve-credentials"
  fi
  muster_here pid || muster_spaces="$muster_spaces --pid"
  PATH=$(printf '%s\n' "$muster_words" | sed -n 's/^PATH=//p')
  export PATH
  unset LD_LIBRARY_PATH __OUTSIDE_VARIABLES__
  # shellcheck disable=SC2086 # several words
  exec "$muster_nsenter" --target "${muster_agent#/proc/}" $muster_spaces --root --wd -- "$@"
done
exec __RUNTIME__ "$@"
