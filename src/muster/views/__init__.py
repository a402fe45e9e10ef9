"""Seeing a run: its timeline and what follows from it, from the run directory alone. See docs/seeing.md."""
