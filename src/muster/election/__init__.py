"""Leader election: membership, quorum leases and failover. No I/O, no clock; standard library only."""
