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
