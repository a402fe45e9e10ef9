"""`muster ui`: what there is to see of runs, over HTTP on loopback. See docs/seeing.md."""
