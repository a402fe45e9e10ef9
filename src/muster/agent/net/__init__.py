"""Network addresses and interfaces of this host."""
