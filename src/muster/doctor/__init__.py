"""Check whether runs work on this machine or cluster: facts are gathered by probes, and evaluated by pure checks."""
