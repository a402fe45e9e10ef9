"""Services: programs that run beside the job; started in parallel with Ray, probed and restarted (docs/services.md)."""
