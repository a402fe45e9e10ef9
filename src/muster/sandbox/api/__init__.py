"""The HTTP interfaces of a sandbox server."""
