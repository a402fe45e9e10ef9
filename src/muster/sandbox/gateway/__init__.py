"""The gateway: one endpoint per node for all sandboxes of a cluster."""
