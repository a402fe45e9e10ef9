"""Slurm's commands: submit, query and cancel jobs."""
