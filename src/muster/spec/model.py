"""Define the job spec, the one model for the job file, the flags of `muster run` and the Python API.

Every field carries its flag (`Flag`), so that the command line, the help and the error messages agree with the job
file. Field names are the long flags with underscores. The modules of `fields` define them by subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, ValidationError, model_validator

from muster.errors import SpecError
from muster.spec.arrays import validate_array
from muster.spec.errors import explain
from muster.spec.fields.gang import GangFields, validate_gang
from muster.spec.fields.groups import validate_groups, validate_ray_of_groups, with_total
from muster.spec.fields.job import (
    CommandFields,
    ContainerFields,
    DeadlineFields,
    EnvironmentFields,
    validate_range,
    with_range,
)
from muster.spec.fields.node_checks import NodeCheckFields
from muster.spec.fields.node_memory import NodeMemoryFields
from muster.spec.fields.ray import RayFields
from muster.spec.fields.services import ServiceFields, validate_services
from muster.spec.fields.slurm import RequeueFields, SlurmFields, validate_gpus
from muster.spec.fields.spares import SpareFields, validate_spares
from muster.spec.flags import flags_of
from muster.spec.passthrough import move_options


# The last base's fields come first, in the model as in --help.
class JobSpec(
    NodeMemoryFields,
    NodeCheckFields,
    SpareFields,
    RequeueFields,
    SlurmFields,
    DeadlineFields,
    ContainerFields,
    EnvironmentFields,
    GangFields,
    RayFields,
    ServiceFields,
    CommandFields,
):
    """A validated, immutable job with all defaults filled in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # for type checkers, the constructor has the fields as parameters

        def __init__(self, **fields: Any) -> None:
            """Raise SpecError, with a line per problem, for an invalid job."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise SpecError(explain(error, FLAGS, {})) from None

        # As pydantic's own constructor: `model_validate`, which `load` uses, does not call it.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _move_sbatch_options(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        result = move_options(data, FLAGS)
        if result.problems:
            raise ValueError("\n".join(f"sbatch.{key} {problem}" for key, problem in result.problems))
        return with_total(with_range(result.values))

    @model_validator(mode="after")
    def _validate_combinations(self) -> JobSpec:
        validate_groups(self.groups, self.nodes)
        validate_ray_of_groups(self)
        validate_range(self)
        try:
            validate_gpus(self.gpus_per_node, self.gres)
        except ValueError as error:
            raise ValueError(f"gpus_per_node: {error}") from None
        validate_array(self)
        validate_gang(self)  # before the spares: their advice is to add some, which a gang cannot use
        validate_spares(self)
        validate_services(self)
        return self

    @property
    def nodes_given(self) -> bool:
        """Whether the number of nodes was given; if not, a run inside an allocation uses all of its nodes."""
        return "nodes" in self.model_fields_set

    @property
    def fewest_nodes(self) -> int:
        """The number of nodes, without spares, with which the job may begin."""
        return self.nodes if self.min_nodes is None else self.min_nodes

    @property
    def has_surplus(self) -> bool:
        """Whether the job may begin with fewer nodes than it requests, spares included."""
        return bool(self.spares) or self.fewest_nodes < self.nodes

    def sbatch_requests(self) -> dict[str, str | None]:
        """Return the job's sbatch options by long name: None for an option without value, "" to remove a default.

        The options that Muster decides (nodes, tasks, name) are not among them; `launch.slurm_directives` adds them.
        """
        options: dict[str, str | None] = {}
        for field, flag in FLAGS.items():
            value = getattr(self, field)
            if flag.sbatch and value is not None:
                options[flag.sbatch] = {True: None, False: ""}[value] if isinstance(value, bool) else str(value)
        return {**options, **self.sbatch}


FLAGS = flags_of(JobSpec)
"""The flags of all fields, in the model's order."""
