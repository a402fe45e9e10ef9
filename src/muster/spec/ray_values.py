"""Check single values of the job's fields for Ray: arguments of `ray start`, resources, labels, variables to remove.

As in `validators`, the message of a ValueError continues a sentence that begins with the value.
"""

from __future__ import annotations

import re

from muster.spec import validators

_PORTS = "use --port-base for all ports"
_DASHBOARD = "use --dashboard"
_LABELS = "use --ray-label"

START_OPTIONS_OF_MUSTER = {
    "--head": "the leader's node is the head",
    "--address": "the workers find the head themselves",
    "--node-ip-address": "use --interface",
    **dict.fromkeys(
        [
            "--port",
            "--redis-shard-ports",
            "--object-manager-port",
            "--node-manager-port",
            "--min-worker-port",
            "--max-worker-port",
            "--worker-port-list",
            "--ray-client-server-port",
            "--dashboard-agent-listen-port",
            "--dashboard-agent-grpc-port",
            "--runtime-env-agent-port",
            "--metrics-export-port",
        ],
        _PORTS,
    ),
    "--dashboard-port": f"{_DASHBOARD}, and --port-base for all ports",
    "--dashboard-host": f"{_DASHBOARD}, which listens on the loopback interface of the head",
    "--include-dashboard": _DASHBOARD,
    "--num-cpus": "use --cpus-per-node",
    "--num-gpus": "use --gpus-per-node",
    "--memory": "it is the memory of the job on the node, without the object store",
    "--object-store-memory": "use --object-store-memory of Muster",
    "--resources": "use --ray-resource",
    "--labels": _LABELS,
    "--labels-file": _LABELS,
    "--temp-dir": "each start has its own directory",
    "--block": "Muster watches the processes",
    "--disable-usage-stats": "it is always set",
    "--log-color": "logs have no colors",
}
"""The arguments of `ray start` that Muster sets, each with what to use instead."""

_RESOURCES_OF_MUSTER = {
    "CPU": "use --cpus-per-node",
    "GPU": "use --gpus-per-node",
    "memory": "it is the memory of the job on the node",
    "object_store_memory": "use --object-store-memory",
    **dict.fromkeys(["slurm_managed_ray_cluster", "topo_rank", "worker_units", "ray_head"], "NeMo-RL reads it"),
}
_RESOURCE_PREFIXES_OF_MUSTER = ("nvlink_domain_", "group_", "node:", "accelerator_type:")
_LABELS_OF_MUSTER = ("ray.io/node-type", "ray.io/node-id")
_LABEL_PREFIX = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


def start_argument(value: str) -> str:
    """Check one argument of `ray start`, with its value after `=`, that Muster does not set."""
    name = validators.no_nul(value).partition("=")[0]
    if not re.fullmatch(r"--[a-z][a-z0-9-]*", name):
        raise ValueError("is not one argument of the form --NAME or --NAME=VALUE")
    if name in START_OPTIONS_OF_MUSTER:
        raise ValueError(f"is set by Muster: {START_OPTIONS_OF_MUSTER[name]}")
    return value


def resource_name(value: str) -> str:
    """Check the name of a custom resource that neither Ray nor Muster sets."""
    if value in _RESOURCES_OF_MUSTER:
        raise ValueError(f"is set by Muster: {_RESOURCES_OF_MUSTER[value]}")
    if value.startswith(_RESOURCE_PREFIXES_OF_MUSTER):
        raise ValueError("has a prefix that Ray and Muster use for their resources")
    return validators.one_line(value)


def label_key(value: str) -> str:
    """Check the key of a label as Ray does: NAME or PREFIX/NAME."""
    prefix, slash, name = value.rpartition("/")
    if prefix == "muster.io" or value in _LABELS_OF_MUSTER:
        raise ValueError("is a label that Ray and Muster set")
    if slash and (len(prefix) > 253 or not _LABEL_PREFIX.fullmatch(prefix)):
        raise ValueError("has a prefix that is not a domain name")
    validators.label(name)
    return value


def unset_pattern(value: str) -> str:
    """Check the name of a variable, or the beginning of names and a `*`."""
    validators.env_name(value.removesuffix("*"))
    return value


def absolute_path(value: str) -> str:
    """Check a path that is the same on every node, whatever the working directory."""
    if not value.startswith("/"):
        raise ValueError("is not an absolute path")
    return value
