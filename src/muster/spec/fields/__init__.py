"""Define the fields of a job, one module per subject."""
