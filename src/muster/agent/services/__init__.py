"""Services: programs beside the job, started in parallel with Ray, probed, restarted and ended (docs/services.md)."""
