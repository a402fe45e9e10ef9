"""Slurm: rendering the job script (pure), submitting it, asking about it."""
