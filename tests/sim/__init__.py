"""A simulator for lifecycle and election: virtual clocks, network, files, processes and agents, in one thread.

For tests and benchmarks only.
"""
