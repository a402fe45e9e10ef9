# shellcheck shell=bash
# shellcheck disable=SC2154 # container is set by pyxis_prepare.sh
#
# pyxis keeps the files of a named container, unless the site has made names job-scoped: then enroot lists another name.

if enroot list 2>/dev/null | grep -qxF "pyxis_$container"; then
  timeout --signal=KILL 20 srun --nodes=__NODES__ --ntasks-per-node=1 --overlap --no-kill --kill-on-bad-exit=0 \
    --input=none --mpi=none --job-name=muster-clean enroot remove --force "pyxis_$container" >/dev/null 2>&1
fi
