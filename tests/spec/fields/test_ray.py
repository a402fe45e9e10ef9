"""The fields of the Ray cluster: defaults, limits and sizes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from muster.spec.fields.ray import RayFields


def test_a_job_has_a_ray_cluster_without_dashboard_on_any_free_ports() -> None:
    fields = RayFields()
    assert (fields.ray, fields.dashboard, fields.dedicated_head, fields.require_auth) == (True, False, False, False)
    assert (fields.port_base, fields.object_store_memory, fields.large_from) == (None, None, 64)
    assert (fields.ray_logs, fields.ray_logs_max) == ("on-failure", 64 * 1024**2)


@pytest.mark.parametrize("port", [1024, "64536"])
def test_a_block_of_ports_may_begin_at_any_unprivileged_port_that_leaves_room_for_it(port: int | str) -> None:
    assert RayFields.model_validate({"port_base": port}).port_base == int(port)


@pytest.mark.parametrize("port", [1023, 64537, True, "auto"])
def test_other_first_ports_are_refused(port: object) -> None:
    with pytest.raises(ValidationError, match="port_base"):
        RayFields.model_validate({"port_base": port})


@pytest.mark.parametrize("field", ["object_store_memory", "ray_logs_max"])
def test_a_size_is_in_bytes_or_has_a_unit_and_is_not_zero(field: str) -> None:
    assert getattr(RayFields.model_validate({field: 4096}), field) == 4096
    assert getattr(RayFields.model_validate({field: "64G"}), field) == 64 * 1024**3
    for size in (0, "0G", "lots", -1):
        with pytest.raises(ValidationError, match=field):
            RayFields.model_validate({field: size})


@pytest.mark.parametrize("when", ["always", "on-failure", "never"])
def test_logs_are_kept_always_never_or_after_a_failure(when: str) -> None:
    assert RayFields.model_validate({"ray_logs": when}).ray_logs == when
    with pytest.raises(ValidationError, match="ray_logs"):
        RayFields.model_validate({"ray_logs": "sometimes"})


def test_arguments_of_ray_start_are_a_list_or_text_quoted_as_in_a_shell() -> None:
    for given in (["--verbose", "--node-name=a b"], "--verbose '--node-name=a b'"):
        assert RayFields.model_validate({"ray_start_arg": given}).ray_start_arg == ["--verbose", "--node-name=a b"]


def test_resources_and_labels_are_entries() -> None:
    fields = RayFields.model_validate({"ray_resource": {"disk": "2"}, "ray_label": {"example.com/rack": "r1"}})
    assert (fields.ray_resource, fields.ray_label) == ({"disk": 2}, {"example.com/rack": "r1"})
    assert RayFields.model_validate({"ray_resource": None, "ray_label": None}).ray_label == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ray_resource", {"disk": "0.5"}),  # Ray allows whole numbers only
        ("ray_resource", {"disk": -1}),
        ("ray_resource", {"CPU": 4}),
        ("ray_label", {"site": "a b"}),
        ("ray_label", {"muster.io/rank": "0"}),
        ("ray_start_arg", ["--num-cpus=4"]),
        ("ray_unset", "SLURM_*,*"),
        ("gpu_affinity_file", "affinity"),
    ],
)
def test_values_that_ray_or_muster_cannot_use_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        RayFields.model_validate({field: value})


def test_variables_to_remove_are_separated_by_commas() -> None:
    assert RayFields.model_validate({"ray_unset": "SLURM_*, MPI_HOME"}).ray_unset == ["SLURM_*", "MPI_HOME"]
