"""Where a run's nodes come from: this machine, a Slurm job, or the allocation we are in."""
