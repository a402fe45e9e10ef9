# shellcheck shell=bash
# shellcheck disable=SC2086 # names of variables
#
# Inside a step (`srun --pty bash`) these variables would shrink or block a further step, or change srun's messages.
# SLURM_CLUSTERS would send the commands of this script and of the agents to the clusters that the user submits to;
# without it they reach the cluster that runs the job.

unset ${!SLURM_STEP@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS \
  SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_DISTRIBUTION \
  SLURM_LABELIO SLURM_STDOUTMODE SLURM_STDERRMODE SLURM_SRUN_REDUCE_TASK_EXIT_MSG SLURM_CLUSTERS
