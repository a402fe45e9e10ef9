"""Values of the fields for Ray: arguments of `ray start`, names of resources, keys of labels, variables, paths."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.agent.ray import settings
from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.resources import ResourceShare
from muster.agent.ray.settings import RayOptions
from muster.ports.blocks import PortBlock
from muster.spec import ray_values


@pytest.mark.parametrize("value", ["--verbose", "--node-name=a", "--system-config={}", "--tracing-startup-hook=a:b"])
def test_other_arguments_of_ray_start_are_accepted(value: str) -> None:
    assert ray_values.start_argument(value) == value


@pytest.mark.parametrize("value", ["", "verbose", "-v", "--", "--node-name a", "--a\0"])
def test_an_argument_has_its_value_after_an_equals_sign(value: str) -> None:
    with pytest.raises(ValueError, match=r"--NAME=VALUE|NUL"):
        ray_values.start_argument(value)


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        ("--num-cpus=4", "--cpus-per-node"),
        ("--port=6379", "--port-base"),
        ("--resources={}", "--ray-resource"),
        ("--labels=a=b", "--ray-label"),
        ("--object-store-memory=1", "--object-store-memory"),
        ("--node-ip-address=10.0.0.1", "--interface"),
    ],
)
def test_an_argument_that_muster_sets_is_refused_with_the_option_to_use(value: str, instead: str) -> None:
    with pytest.raises(ValueError, match=f"is set by Muster: use {instead}"):
        ray_values.start_argument(value)


def test_every_argument_that_muster_sets_is_refused() -> None:
    options = RayOptions(cpus=1, gpus=1, dashboard=True, nodes=2, local=False)
    share, block = ResourceShare(cpus=1, gpus=1, store=1, memory=1), PortBlock(23000, 1000)
    passed = settings.start_arguments(options, NodeFacts(0, "n1"), share, "10.0.0.1", "/tmp/x")
    passed += [
        *settings.head_arguments(options, block),
        *block.arguments(),
        "--ray-client-server-port=1",
        "--address=x",
    ]
    assert {arg.partition("=")[0] for arg in passed} <= ray_values.START_OPTIONS_OF_MUSTER.keys()


@pytest.mark.parametrize("name", ["CPU", "GPU", "memory", "worker_units", "group_a", "nvlink_domain_x", "", "a\nb"])
def test_a_resource_that_ray_or_muster_sets_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has|contains) "):
        ray_values.resource_name(name)
    assert ray_values.resource_name("fast disk") == "fast disk"


@pytest.mark.parametrize("key", ["rack", "ray.io/gpu-domain", "example.com/a_b.c"])
def test_a_key_of_a_label_is_a_name_that_may_follow_a_domain(key: str) -> None:
    assert ray_values.label_key(key) == key


@pytest.mark.parametrize("key", ["", "a b", "-a", "a/b/c", "/a", "muster.io/rank", "ray.io/node-type", "x" * 64])
def test_other_keys_of_labels_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) "):
        ray_values.label_key(key)


@pytest.mark.parametrize(
    ("check", "valid", "invalid"),
    [
        (ray_values.unset_pattern, ["SLURM_*", "MPI_HOME"], ["*", "A*B", "", "1A", "A=B"]),
        (ray_values.absolute_path, ["/tmp/x"], ["x", "~/x", ""]),
    ],
)
def test_variables_and_paths(check: Callable[[str], str], valid: list[str], invalid: list[str]) -> None:
    assert [check(value) for value in valid] == valid
    for value in invalid:
        with pytest.raises(ValueError, match=r"^is not "):
            check(value)
