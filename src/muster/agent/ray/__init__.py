"""Start, supervision and end of a Ray head or worker on one node. Standard library only."""
