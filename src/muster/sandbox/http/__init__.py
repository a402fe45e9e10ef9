"""HTTP/1.1 for the sandbox: server and client sides."""
