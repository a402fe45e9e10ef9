"""The example for JAX: one process per node, and a sum over all of them."""

from __future__ import annotations

import importlib.util

import pytest
from tests.examples.running import lines_of, run_example
from tests.running import MusterCommand


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax (make test-examples)")
def test_processes_of_all_nodes_add_their_ranks(muster: MusterCommand) -> None:
    done = run_example(muster, "jax_distributed")
    assert "2 processes, 2 devices, sum of ranks 1" in lines_of(done)
