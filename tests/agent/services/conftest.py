"""The node that the tests of services run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent.services.launch import InstanceContext


@pytest.fixture
def context(tmp_path: Path) -> InstanceContext:
    env = {"PATH": os.environ["PATH"], "KEPT": "1", "OTHER": "2"}
    return InstanceContext("127.0.0.1", "/run/agent.pyz", b"secret", str(tmp_path), env)
