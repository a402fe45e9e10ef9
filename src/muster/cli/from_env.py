"""The --from-env option of `muster run` and `muster render`: take the job from the variables of NeMo-RL's ray.sub."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from muster.cli.options import GroupedOption
from muster.spec import SpecError
from muster.spec.ray_sub import NO_COMMAND, as_arguments, ray_sub_job

R = TypeVar("R")


def from_env_option(function: Callable[..., R]) -> Callable[..., R]:
    return click.option(
        "--from-env",
        is_flag=True,
        cls=GroupedOption,
        group="Job",
        help="Take the job from ray.sub's variables (COMMAND, CONTAINER, MOUNTS, ...); the job's flags win.",
    )(function)


def with_environment(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags over the fields from ray.sub's variables; print a line for each variable without effect here."""
    found = ray_sub_job(os.environ, flags)
    for note in found.notes:
        click.echo(f"muster: --from-env: {note}", err=True)
    if "command" not in found.fields and "command" not in flags:
        raise SpecError([NO_COMMAND])
    click.echo(f"muster: --from-env adds: {shlex.join(as_arguments(found.fields))}", err=True)
    return {**found.fields, **flags, "env": {**found.fields["env"], **flags.get("env", {})}}
