"""The processes on a node: one agent per node, one of which leads the run. Standard library only, Python >= 3.9."""
