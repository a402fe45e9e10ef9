"""The container around the job step."""
