"""The flags of fields: their order, their long names and the names in a job file."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from muster.spec.flags import Flag, flags_of, long_flag, spellings

NAME = Flag("Name of the job.", group="Job", allowed="text", aliases=("job-name",))
SIZE = Flag("Size of the job.", group="Job", allowed="a number")


class Example(BaseModel):
    size_of_job: Annotated[int, SIZE] = 1
    internal: Annotated[int, Field(ge=1)] = 1
    name: Annotated[str, Field(min_length=1), NAME] = "x"


@pytest.mark.parametrize(("field", "flag"), [("nodes", "--nodes"), ("cpus_per_node", "--cpus-per-node")])
def test_the_long_flag_is_the_field_with_dashes(field: str, flag: str) -> None:
    assert long_flag(field) == flag


def test_flags_are_listed_in_the_order_of_the_fields_and_other_metadata_is_not_a_flag() -> None:
    assert list(flags_of(Example).items()) == [("size_of_job", SIZE), ("name", NAME)]


def test_a_job_file_may_use_a_field_s_name_or_an_alias() -> None:
    assert spellings(flags_of(Example)) == {"size_of_job": "size_of_job", "name": "name", "job_name": "name"}
