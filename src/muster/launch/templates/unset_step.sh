# shellcheck shell=bash
#
# Inside a step (`srun --pty bash`) these variables would shrink or block a further step, or change srun's messages.
# slurm/step_variables.py has the names.
# SLURM_CLUSTERS would send the commands of this script and of the agents to the clusters that the user submits to;
# without it they reach the cluster that runs the job.

unset __STEP_VARIABLES__ SLURM_SRUN_REDUCE_TASK_EXIT_MSG SLURM_CLUSTERS
