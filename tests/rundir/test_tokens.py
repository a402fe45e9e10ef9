"""Secrets derived from the run's token."""

from __future__ import annotations

from muster.rundir.tokens import derive_ray_token


def test_the_ray_token_is_the_same_for_one_run_and_differs_between_runs() -> None:
    """Every node derives it; a changed derivation would separate nodes with agents of different versions."""
    assert derive_ray_token(b"a" * 64) == b"587ce0909e7d93a565d9addf523383ee5fe54aeff1fbc6fcdd8d1c7717a5403b"
    assert derive_ray_token(b"a" * 64) != derive_ray_token(b"b" * 64)


def test_the_run_s_token_is_not_part_of_it() -> None:
    token = b"0123456789abcdef" * 4
    assert token not in derive_ray_token(token) and len(derive_ray_token(token)) == 64
