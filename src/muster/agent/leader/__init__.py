"""The leader: runs the state machine of the run, executes its commands, publishes its status."""
