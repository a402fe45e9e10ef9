"""The settings of a sandbox: read from JSON, and refused with all their problems."""

from __future__ import annotations

from typing import Any

import pytest

from muster.sandbox.settings import SandboxSettings, SettingsError, split_address


def test_settings_refuse_all_that_is_wrong_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        SandboxSettings(
            workers_min=0, memory_mb=1, isolation="x", python="/no/python", port=70000, read_only=("/no/path",)
        )
    problems = "\n".join(caught.value.problems)
    for word in ("workers_min", "memory_mb", "isolation", "/no/python", "port", "/no/path"):
        assert word in problems


def test_settings_come_from_json() -> None:
    settings = SandboxSettings.from_json({"preload": ["json"], "env": {"A": "b"}, "workers_min": 1, "workers_max": 1})
    assert (settings.preload, settings.env) == (("json",), (("A", "b"),))
    with pytest.raises(SettingsError, match="unknown setting 'ports'"):
        SandboxSettings.from_json({"ports": 1})


@pytest.mark.parametrize("text", ["nowhere", "host:", "host:99999", ":x"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not ADDRESS:PORT"):
        split_address(text)


def test_settings_of_a_cluster_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingsError, match="members_file needs listen"):
        SandboxSettings(members_file="/m")
    with pytest.raises(SettingsError, match="token: only letters, digits"):
        SandboxSettings(listen="127.0.0.1:1", token='t"; evil')
    with pytest.raises(SettingsError, match="gateway is 'caddy'"):
        SandboxSettings(gateway="caddy")
    assert not SandboxSettings(members_file="/m", single_node=True).is_clustered


def test_a_read_only_path_that_would_hide_the_scratch_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        SandboxSettings(read_only=("/tmp", "/dev"))
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "read_only: /tmp would hide /tmp",
        "read_only: /dev would hide /dev/shm",
    ]


def test_the_defaults_are_valid_and_for_one_node() -> None:
    settings = SandboxSettings()
    assert not settings.is_clustered and settings.host == "127.0.0.1"
    assert settings.workers_min <= settings.workers_max


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"workers_min": 3, "workers_max": 2}, "workers_min is 3, more than workers_max, 2"),
        ({"sessions_max": 200_000}, "are more than 100000 together"),
        ({"max_timeout_s": 0}, "max_timeout_s is 0: it must be more than 0"),
        ({"max_timeout_s": float("nan")}, "max_timeout_s is nan"),
        ({"queue_wait_s": 3.6}, "queue_wait_s is 3.6: it must be from 0 to 3.5"),
        ({"host": "10.0.0.1"}, "host is 10.0.0.1, which is not loopback"),
        ({"host": "localhost"}, "host is 'localhost': it must be a loopback address"),
        ({"listen": "nowhere", "token": "t"}, "listen: 'nowhere' is not ADDRESS:PORT"),
        ({"listen": "0.0.0.0:7000"}, "listen needs a token"),
        ({"scratch_dir": "/no/such/place"}, "scratch_dir: /no/such/place is not a directory"),
        ({"session_memory_mb": 0}, "session_memory_mb is 0: it must be at least 1"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SandboxSettings(**values)
    assert len(caught.value.problems) == 1 and problem in caught.value.problems[0]


def test_a_cluster_has_members_and_a_port_between_nodes() -> None:
    assert SandboxSettings(members_file="/m", listen="[::]:0", token="a-token.of~the/run==").is_clustered


@pytest.mark.parametrize(
    ("text", "address"),
    [("10.0.0.3:7000", ("10.0.0.3", 7000)), ("[::]:0", ("::", 0)), ("7000", ("0.0.0.0", 7000)), (":7", ("0.0.0.0", 7))],
)
def test_an_address_is_split(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
