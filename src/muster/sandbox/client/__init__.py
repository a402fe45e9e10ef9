"""Clients of a sandbox. Standard library only."""
