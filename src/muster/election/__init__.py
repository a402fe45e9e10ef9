"""Who leads: membership, quorum, leases and elections. No I/O and no clock. Standard library only."""
