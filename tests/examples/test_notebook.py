"""The example with a notebook: its cells compile, and as the driver of a run it uses all nodes."""

from __future__ import annotations

import importlib.util
import json

import pytest
from tests.examples.running import EXAMPLES, lines_of, run_example
from tests.running import MusterCommand

NOTEBOOK = EXAMPLES / "notebook" / "explore.ipynb"


def code_cells(text: str) -> list[dict[str, object]]:
    return [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def test_the_cells_compile_and_are_stored_without_output() -> None:
    cells = code_cells(NOTEBOOK.read_text())
    assert len(cells) == 3 and not any(cell["outputs"] for cell in cells)
    for cell in cells:
        compile("".join(cell["source"]), NOTEBOOK.name, "exec")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("nbclient", "ipykernel")),
    reason="needs nbclient and ipykernel (make test-examples)",
)
def test_a_notebook_as_the_driver_uses_all_nodes(muster: MusterCommand) -> None:
    (muster.cwd / "job.yaml").write_text("nodes: 2\ncommand: [jupyter, execute, explore.ipynb, --inplace]\n")
    lines_of(run_example(muster, "notebook"))
    outputs = json.dumps([cell["outputs"] for cell in code_cells((muster.cwd / "explore.ipynb").read_text())])
    assert "2 nodes in run" in outputs and "285" in outputs
