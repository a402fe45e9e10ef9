"""The HTTP API of a sandbox server."""
