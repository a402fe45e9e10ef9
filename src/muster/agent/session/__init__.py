"""Interactive use of a running cluster: shells, commands, idle clusters."""
