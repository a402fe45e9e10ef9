"""Health of a node: the job's own check, stacks of stalled processes, limits of the operating system."""
