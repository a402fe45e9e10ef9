"""Planning: which bundle of which replica goes to which node. Pure."""
