"""Turn a job spec into a running job: plan the run, write its directory, submit its job script."""
