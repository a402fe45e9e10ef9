"""The command line: one module per command, plus the modules that several commands share."""
