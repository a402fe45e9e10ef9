"""Interactive use of a running cluster: attached shells and commands, and idle clusters."""
