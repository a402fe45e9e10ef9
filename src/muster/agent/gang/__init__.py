"""Gangs: processes on every active node instead of one driver."""
