"""The processes below the engine: zygote, workers and executions. Sent to them as source; standard library only."""
