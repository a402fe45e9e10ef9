"""Define the job's fields for the built-in checks of nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from muster.lifecycle.node_checks import BY_NAME, BYTES, MEDIAN, NODE_CHECKS
from muster.spec import validators
from muster.spec.flags import Flag

SWITCHES = {"on": True, "off": False, "true": True, "false": False}


def check_changes(value: object) -> object:
    """Return on, off or the threshold of each check. Raises ValueError for an unknown check or threshold."""
    value = validators.empty_for_none(value)
    return {name: _change(str(name), change) for name, change in value.items()} if isinstance(value, dict) else value


def _change(name: str, value: object) -> object:
    check = BY_NAME.get(name)
    if check is None:
        raise ValueError(f"has no check {name!r}; known: {', '.join(one.name for one in NODE_CHECKS)}")
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in SWITCHES:
        return SWITCHES[value.lower()]
    if check.threshold is None:
        raise ValueError(f"{name} has no threshold: it can be on or off")
    try:
        threshold = float(str(validators.size(value)) if check.unit == BYTES else str(value))
    except ValueError:
        raise ValueError(f"{name}={value} is neither on, off nor a threshold") from None
    if not 0 <= threshold < (1.0 if check.unit == MEDIAN else float("inf")):
        raise ValueError(f"{name}={value} is out of range")
    return threshold


class NodeCheckFields(BaseModel):
    """Which built-in checks run on each node before the job, on waiting spares and after failures."""

    node_checks: Annotated[
        Literal["none", "basic", "standard", "all"],
        Flag(
            "Built-in checks of every node before the job, of waiting spares and after failures: none, basic (free "
            "disk and memory, number of GPUs), standard (also storage, clock, network ports, memory errors and links "
            "of GPUs) or all (also tests that take seconds and compare nodes).",
            group="Node checks",
            allowed="none, basic, standard or all",
            metavar="none|basic|standard|all",
        ),
    ] = "basic"
    node_check: Annotated[
        dict[str, bool | float],
        BeforeValidator(check_changes),
        Flag(
            "Add a check, leave it out, or set its threshold, as in gpu-ecc=on, memory=off or disk=10G; may be "
            "repeated. docs/reference/node-checks.md lists them.",
            group="Node checks",
            allowed="NAME=on, NAME=off or NAME=THRESHOLD",
            metavar="NAME=VALUE",
        ),
    ] = Field(default_factory=dict)
