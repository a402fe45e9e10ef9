"""The web server of `muster ui`: views of runs over HTTP on loopback. See docs/explanation/views.md."""
