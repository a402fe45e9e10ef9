"""The lifecycle of a run as a state machine: events go in, commands come out. No I/O, no clock, standard library."""
