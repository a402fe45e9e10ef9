"""The fields of a job, by subject."""
