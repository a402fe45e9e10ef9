"""Engine options as command-line flags."""

from __future__ import annotations

from muster.placement.planning.flags import engine_kwargs_to_cli_flags


def test_options_become_flags() -> None:
    options = {
        "tensor_parallel_size": 4,
        "enforce_eager": True,
        "enable_lora": False,
        "seed": None,
        "dtype": "auto",
        "served_model_name": ["a", "b"],
        "generation_config": {"temperature": 0.7},
        "rate": 0.5,
    }
    assert engine_kwargs_to_cli_flags(options) == [
        "--tensor-parallel-size",
        "4",
        "--enforce-eager",
        "--dtype",
        "auto",
        "--served-model-name",
        '["a", "b"]',
        "--generation-config",
        '{"temperature": 0.7}',
        "--rate",
        "0.5",
    ]
