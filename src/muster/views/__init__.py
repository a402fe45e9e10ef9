"""Views of a run, derived from its run directory only: timeline, report, metrics. See docs/explanation/views.md."""
