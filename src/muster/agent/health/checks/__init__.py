"""The built-in checks of a node, one module per subject. They run in a child process, since a device may hang."""
