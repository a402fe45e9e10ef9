"""The run directory as seen from outside: find, status, follow, stop. No Slurm RPC while a run is alive."""
