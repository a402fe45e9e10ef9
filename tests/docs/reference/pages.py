"""The generated pages: path below docs, and the function that returns the text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs import generate_ray_sub, generate_tables
from tests.docs.reference import (
    commands,
    http_api,
    job_file,
    metrics,
    node_checks,
    proven,
    python_api,
    status,
    variables,
)

DOCS = Path(__file__).parents[3] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands.page,
    "reference/job-file.md": job_file.page,
    "reference/node-checks.md": node_checks.page,
    "reference/environment.md": variables.page,
    "reference/exit-codes.md": status.exit_codes_page,
    "reference/status-and-events.md": status.page,
    "reference/http-api.md": http_api.page,
    "reference/python-api.md": python_api.page,
    "reference/metrics.md": metrics.page,
    "reference/proven.md": proven.page,
    "reference/core.md": generate_tables.page,
    "reference/sandbox.md": generate_tables.sandbox_page,
    "reference/ray-sub.md": generate_ray_sub.current_page,
}


def write_pages() -> None:
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
