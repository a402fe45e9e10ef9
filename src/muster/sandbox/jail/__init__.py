"""What runs below the server: the zygote, workers and executions. Sent along as source; standard library only."""
