"""A simulated edge around the real protocol: clocks, network, files, processes and agents, all of them in one thread.

It is for tests and measurements alone, and no part of what runs on a node.
"""
