"""Services: programs that run beside the job; see docs/explanation/services.md."""
