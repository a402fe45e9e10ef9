"""Choosing and leasing ports of this host. Standard library only, Python 3.9: it runs on nodes.

ranges         which ports to choose from, the safest first
guards         what holds a port or a block: bound sockets and names in the abstract namespace of Unix sockets
blocks         a block of ports for Ray or a gang, held while the agent runs
socket_leases  a single port for a service, held while the agent runs
file_leases    a single port for a program in Ray, held while a given process runs or for a limited time
"""
