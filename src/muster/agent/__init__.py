"""What runs on a node: one agent per node, one of them the leader. Standard library only, Python >= 3.9."""
