"""The probe that runs on the nodes: standard library only, Python 3.9 or newer, passed as source."""
