"""The pure protocol of a run: members, phases, the end. No I/O, no clock. Standard library only."""
