"""Placement in a running Ray cluster: groups, actors, replicas and their health."""
