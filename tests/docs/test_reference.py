"""The reference has every option, field, variable, exit code, key, event, endpoint and metric, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.docs.reference import http_api, job_file, metrics, proven, python_api, status, variables
from tests.docs.reference.commands import all_commands, options, spelling
from tests.docs.reference.markdown import cell
from tests.docs.reference.pages import DOCS, PAGES

from muster.spec.model import FLAGS, JobSpec

GOLDEN = Path(__file__).parents[1] / "formats" / "golden"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run `python -m tests.docs.reference`"


def test_every_option_of_every_command_is_in_the_reference() -> None:
    text = PAGES["reference/commands.md"]()
    commands = dict(all_commands())
    assert len(commands) > 25 and all(f"\n## {name}\n" in text for name in commands)
    missing = [one.name for command in commands.values() for one in options(command) if cell(spelling(one)) not in text]
    assert missing == []


def test_every_field_of_the_job_file_is_in_the_reference() -> None:
    text = PAGES["reference/job-file.md"]()
    assert [field for field in FLAGS if f"\n| `{field}` |" not in text] == []
    assert FLAGS.keys() == JobSpec.model_fields.keys()


def test_every_setting_of_a_sandbox_has_its_remark() -> None:
    assert job_file.sandbox_comments()["read_only"] == "further paths that programs may read"


def test_every_variable_of_the_sources_is_in_the_reference_and_no_other() -> None:
    documented = {variables.PATTERNS.get(name, name) for name in variables.MUSTER_VARIABLES}
    assert variables.names_in_sources() == documented


@pytest.mark.parametrize("recorded", ["driver-variables", "rank-variables", "web-variables"])
def test_every_variable_that_a_process_had_in_a_real_run_is_in_the_reference(recorded: str) -> None:
    documented = {**variables.MUSTER_VARIABLES, **variables.FOR_DRIVERS, **variables.FOR_RANKS}
    seen = {name for name in json.loads((GOLDEN / f"{recorded}.json").read_text()) if "_WEB" not in name}
    seen -= {"MUSTER_PORT_HTTP", "MUSTER_SERVICE_SANDBOX", "MUSTER_SERVICE_SANDBOX_URLS"}
    assert seen - documented.keys() == set()


def test_every_exit_code_is_in_the_reference_and_no_other() -> None:
    assert status.codes().keys() == status.EXIT_CODES.keys()


def test_every_key_of_the_status_is_in_the_reference_and_no_other() -> None:
    assert status.recorded_status() == status.STATUS.keys()


def test_every_event_is_in_the_reference_and_no_other() -> None:
    in_sources = status.events_in_sources()
    assert in_sources.keys() == status.EVENTS.keys()
    for name, (_, fields) in status.EVENTS.items():
        assert in_sources[name] <= set(fields), name
        assert status.recorded_events().get(name, set(fields)) <= set(fields), name


def test_every_endpoint_of_the_sandbox_is_in_the_reference_and_no_other() -> None:
    assert http_api.sandbox_routes() == http_api.SANDBOX.keys()


def test_every_endpoint_of_the_web_page_is_in_the_reference_and_no_other() -> None:
    prefix = "/api/runs/RUN"
    documented = {
        path.removeprefix(prefix).strip("/") for kind, path in http_api.UI if kind == "GET" and prefix in path
    }
    assert documented == http_api.ui_resources()


def test_every_metric_is_in_the_reference_and_no_other() -> None:
    assert metrics.recorded_sandbox().keys() == metrics.SANDBOX.keys()
    text = PAGES["reference/metrics.md"]()
    assert all(f"| `{name}` |" in text for name in metrics.run_metrics())


def test_every_public_name_is_in_the_reference() -> None:
    text = PAGES["reference/python-api.md"]()
    assert all(
        f"\n### {name}\n" in text for package in python_api.PACKAGES for name in python_api.public_names(package)
    )


def test_every_claim_names_test_files_that_exist() -> None:
    named = {test for claim in proven.CLAIMS for test in claim.tests}
    assert named <= set(proven.test_files())
    assert [test for test in proven.test_files() if not proven.summary(proven.TESTS / f"{test}.py")] == []


def test_environments_of_a_test_file_are_found() -> None:
    found = proven.environments("lab/test_run")
    assert found["Slurm"].split(", ") == ["installed", "24.11", "26.05"]
    assert found["Ray"].startswith("2.46.0, ")
    assert "GlusterFS" in found["further"]


class Undocumented:
    """A public class with a method that the reference could not describe."""

    def explain(self) -> None:
        pass


def test_a_public_method_without_a_docstring_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Undocumented\.explain is public and has no docstring"):
        python_api.methods(Undocumented)
