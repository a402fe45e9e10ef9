"""The control channel between the leader and the agents."""
