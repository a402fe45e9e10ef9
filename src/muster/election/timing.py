"""The times of the leader's lease and of fencing, which keep two leaders from acting at once.

A leader may act only while it holds a lease: half of the members (including itself) have answered a heartbeat that it
sent less than LEASE_S ago. Supervisors kill its processes within LEASE_KILL_S of the lease's end, without help from the
agent. A member that has lost its leader waits until both have passed since its own last answer. So when a majority has
left a leader, no process of that leader is alive.
"""

LEASE_S = 9.5  # of a leader
LEASE_KILL_S = 1.2  # in which supervisors kill the processes of an expired lease; 0.3 s for 300 of them at load 47
CLOCK_DRIFT_S = 0.3  # disagreement of two hosts' clocks about such a time: 1 % each, in either direction
FENCE_S = LEASE_S + LEASE_KILL_S + CLOCK_DRIFT_S  # after its last answer to a leader a member may join another one
