"""The command line: commands, progress for people, events for programs."""
