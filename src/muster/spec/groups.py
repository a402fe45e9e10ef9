"""A group of like nodes in a job whose nodes are not all alike."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from muster.spec import values
from muster.spec.types import Count, CountOrZero, Line


class Group(BaseModel):
    """So many nodes of one kind; they carry the group's name as a label and a resource."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(values.label)]
    nodes: Count
    cpus_per_node: Count | None = None
    gpus_per_node: CountOrZero | None = None
    partition: Line | None = None
    constraint: Line | None = None
    gres: Line | None = None
    mem: Annotated[str, BeforeValidator(values.memory)] | None = None
    nodelist: Line | None = None
    exclude: Line | None = None
