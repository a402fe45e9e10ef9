# shellcheck shell=sh
# shellcheck disable=SC2154,SC2170 # muster_attempt is set by the prelude; the number of candidates is a placeholder
#
# Write the heartbeat of a node that may lead until its agent writes it: --setup and the start of a container may take
# minutes. The loop is not a child of this shell, because a `wait` in --setup would wait for it. It ends with the process
# that becomes the agent, or when the agent has written its record.

muster_node=$muster_attempt/nodes/$(printf %04d "${__RANK_VARIABLE__}")
if [ "${__RANK_VARIABLE__}" -le __CANDIDATES__ ]; then
  (
    trap '' __FORWARDED_SIGNALS__
    umask 077
    muster_beat=0
    while kill -0 $$ && [ ! -e "$muster_node.json" ]; do
      muster_beat=$((muster_beat + 1))
      echo "$muster_beat" >"$muster_node.alive"
      sleep __HEARTBEAT_S__ || break
    done &
  ) </dev/null >/dev/null 2>&1 3>&- 4>&-
fi
