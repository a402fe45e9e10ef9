"""One URL for a pool of replicas: a proxy on every node balances requests over HTTP servers of the run."""
