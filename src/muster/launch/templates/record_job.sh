# shellcheck shell=bash
# shellcheck disable=SC2154 # attempt is set by the job script
#
# Only in a job that Muster submitted: the record allows the agents to cancel the job. SLURM_JOB_ID of one task may be
# that of its whole array.

chmod go= "$run"/slurm-*.out 2>/dev/null # Slurm has created it with the user's mask
own=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || own=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
printf '{"job_id": "%s", "restarts": %d}\n' "$own" "${SLURM_RESTART_COUNT:-0}" >"$attempt/slurm-job.json.tmp" &&
  mv "$attempt/slurm-job.json.tmp" "$attempt/slurm-job.json"
