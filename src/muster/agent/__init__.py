"""What runs on a node: one agent per node, one of them the lead. Standard library only, Python >= 3.9."""
