# shellcheck shell=bash
# shellcheck disable=SC2034,SC2242 # muster_attempt is used by the heartbeat; the exit code is a placeholder
#
# Runs on the node before the container runtime and reports what the runtimes report at length and without the node's
# name.

muster_fail() { echo "muster: ${__HOST_VARIABLE__}: $1" >&2; exit __NO_CONTAINER__; }
muster_attempt=$1 muster_image=$2
shift 2
__HEARTBEAT__
command -v "$1" >/dev/null || muster_fail "there is no $1 on this node, which was to run the container"
[ -z "$muster_image" ] || [ -e "$muster_image" ] || muster_fail "cannot see the container image $muster_image"
export USER="${USER:-$(id -un)}"
unset __OUTSIDE_VARIABLES__
exec "$@"
