"""Exit codes with a meaning in Muster: of the command line, of runs, and of what the job script starts on a node.

A run ends with the exit code of its driver unless one of these applies. `tests/formats` pins those of `muster run`.
Standard library only: every package may import this module.
"""

BAD_INPUT = 2  # a wrong option or job file, as click and argparse have it

# With --control-exit-codes, a program requests something of the run by its exit code. No shell, sysexits.h, signal,
# container runtime or torchrun uses these codes; a program that exits with an errno may, so they are an option.
RESTART_REQUESTED = 115  # also the code of a run that cannot begin the requested cycle
RESTART_FORBIDDEN = 116
NODE_EXCLUDED = 117

NO_PROGRESS = 119  # a run that was restarted `no_progress_limit` times without progress

# The prelude (job_script.py) and the archive's first lines end with these codes before an agent runs on the node. They
# also print the reason, but that reaches the leader over another connection than the code, and perhaps later.
CONTAINER_FAILED = 120
RUN_DIR_NOT_VISIBLE = 121
SETUP_FAILED = 122
OLD_PYTHON = 123
HEALTH_CHECK_FAILED = 124
NO_PYTHON = 127

INFRASTRUCTURE_FAILED = 125  # Muster or the cluster failed, not the command

# As shells and timeout(1) have them.
TIMED_OUT = 124
NOT_EXECUTABLE = 126
NOT_STARTED = 127
BY_SIGNAL = 128  # plus the number of the signal
INTERRUPTED = 130
TERMINATED = 143
