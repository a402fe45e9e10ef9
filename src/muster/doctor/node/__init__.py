"""What runs on the nodes to be examined: the standard library alone, Python 3.9 or newer, sent along as source."""
