"""Ray's settings for large clusters."""

from __future__ import annotations

from muster.agent.ray import tuning


def test_a_cluster_is_tuned_for_size_from_a_number_of_nodes_on() -> None:
    name = "RAY_gcs_server_request_timeout_seconds"
    assert name not in tuning.defaults(63, 64)
    assert name in tuning.defaults(64, 64)


def test_the_settings_effective_settings_are_the_user_s_where_there_are_any() -> None:
    name = "RAY_health_check_timeout_ms"
    assert tuning.effective_settings({name: "7"}, 100, 64)[name] == "7"
    assert tuning.effective_settings({}, 100, 64)[name] == tuning.LARGE_CLUSTERS[name]
