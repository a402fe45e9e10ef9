"""Is this machine, or this cluster, fit for a run? Facts are gathered at the edge, results on them are pure."""
