"""docs/reference/ray-sub.md has the tables of the code, and names only what exists."""

from __future__ import annotations

import re

from tests.docs.generate_ray_sub import PAGE, page

from muster.spec.flags import long_flag
from muster.spec.model import FLAGS
from muster.spec.ray_sub_variables import RAY_SUB_VARIABLES

OF_OTHERS = {
    "--from-env",  # of `muster run`, but no field of the job
    "--no-container-mount-home",
    "--no-home",
    "--home",
    "--mpi",
    "--ray-debugger-external",
    "--overlap",
    "--node",
    "--detach",
}


def test_the_tables_are_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tests.docs.reference`"


def test_the_page_has_a_row_for_every_variable_and_no_other() -> None:
    generated = PAGE.read_text(encoding="utf-8").partition("<!-- end of variables -->")[0]
    assert re.findall(r"^\| `([A-Z_]+)` \|", generated, re.MULTILINE) == list(RAY_SUB_VARIABLES)


def test_options_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(--[a-z][a-z-]+)", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 15
    assert named - OF_OTHERS <= {long_flag(name) for name in FLAGS}
