# shellcheck shell=bash
# shellcheck disable=SC2034 # the launcher and pyxis_cleanup.sh use container

srun --help 2>/dev/null | grep -q -e --container-image || {
  record 125 "Slurm has no pyxis here (srun offers no --container-image): choose another --container-runtime"
  exit 125
}
container=__CONTAINER_NAME__
unset __OUTSIDE_VARIABLES__
