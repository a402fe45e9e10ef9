"""The format of log messages: one line each on stderr, with time, node, level and module."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s {node} %(levelname)s %(name)s: %(message)s"


def log_to_stderr(node: str) -> None:
    """Send the messages of Muster's loggers, from INFO up, to stderr: for an agent that is its node's log.

    A process that has configured these loggers already keeps its configuration.
    """
    logger = logging.getLogger("muster")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(FORMAT.format(node=node)))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
