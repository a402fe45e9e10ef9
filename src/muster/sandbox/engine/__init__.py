"""The engine of the sandbox on one node: workers, sessions, workspaces and limits."""
