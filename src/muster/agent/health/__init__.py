"""Health of a node: the job's health check, stacks of stalled processes, limits of the operating system."""
