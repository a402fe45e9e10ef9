"""The sandbox of one node: workers, sessions, workspaces and limits."""
