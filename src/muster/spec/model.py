"""The job: one model for the job file, the flags of `muster run` and the Python API.

Every field carries its flag (`Flag`), so the command line, the help and the error messages cannot differ from
the job file. Field names are the long flags with underscores. The fields stand in `job_fields`, `ray_fields`,
`slurm_fields`, `spare_fields`, `gang_fields` and `service_fields`, by what they are about.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, model_validator

from muster.spec import arrays
from muster.spec.fields import gang, groups, services, spares
from muster.spec.fields.gang import GangFields
from muster.spec.fields.job import ContainerFields, EnvironmentFields, PlaceFields, WatchFields
from muster.spec.fields.ray import RayFields
from muster.spec.fields.services import ServiceFields
from muster.spec.fields.slurm import RestartFields, SlurmFields
from muster.spec.fields.spares import SpareFields
from muster.spec.flags import flags_of
from muster.spec.passthrough import settle


# The last base's fields come first, in the model as in --help.
class JobSpec(
    SpareFields,
    RestartFields,
    SlurmFields,
    WatchFields,
    ContainerFields,
    EnvironmentFields,
    GangFields,
    RayFields,
    ServiceFields,
    PlaceFields,
):
    """What to run, on how many nodes, and how: validated, immutable, and complete with defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _one_place_for_each_option(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        settled = settle(data, FLAGS)
        if settled.problems:
            raise ValueError("\n".join(f"sbatch.{key} {problem}" for key, problem in settled.problems))
        return groups.with_total(settled.values)

    @model_validator(mode="after")
    def _groups_agree(self) -> JobSpec:
        problem = groups.problem(self.groups, self.nodes) or arrays.problem(self)
        problem = problem or spares.problem(self) or gang.problem(self) or services.problem(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def nodes_given(self) -> bool:
        """Whether the number of nodes was asked for; if not, an allocation is used as large as it is."""
        return "nodes" in self.model_fields_set

    def sbatch_requests(self) -> dict[str, str | None]:
        """Every sbatch option this job asks for, by long name: None has no value, "" is to be left out.

        Without what Muster decides (nodes, tasks, name): that is the Slurm backend's to add.
        """
        asked: dict[str, str | None] = {}
        for field, flag in FLAGS.items():
            value = getattr(self, field)
            if flag.sbatch and value is not None:
                asked[flag.sbatch] = {True: None, False: ""}[value] if isinstance(value, bool) else str(value)
        return {**asked, **self.sbatch}


FLAGS = flags_of(JobSpec)
"""Every field's flag, in the model's order."""
