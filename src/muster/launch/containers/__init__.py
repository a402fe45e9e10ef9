"""Run the job's step in a container."""
