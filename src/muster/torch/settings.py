"""The settings of the rendezvous from torchrun's options --rdzv-endpoint, --rdzv-id, --nnodes and --rdzv-conf."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from muster.torch.elastic_types import ElasticConfig
from muster.torch.endpoint import parse_endpoint
from muster.torch.launch_env import LaunchEnvironment

BACKEND = "muster"  # of torchrun's --rdzv-backend
TOKEN_VARIABLE = "MUSTER_TORCH_TOKEN"
LAST_CALL_S = 5.0
ELASTIC_LAST_CALL_S = 30.0  # if the job may start with fewer nodes than the maximum: torchrun's value
MIN_FAILOVER_NODES = 3
KNOWN_OPTIONS = (
    "spares",
    "last_call",
    "rejoin",
    "timeout",
    "read_timeout",
    "is_host",
    "node",
    "token",
    "token_file",
    "failover_dir",
)
ON_HANDLER = "on_handler"  # internal to `muster torchrun`: a callback that gets the handler that torchrun creates


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of one node; `config` and `token` must be the same on all."""

    host: str  # of the endpoint
    port: int
    run_id: str
    config: ElasticConfig
    token: bytes
    node: str  # this node's name
    node_index: int | None  # its position in the order of nodes, if it has one
    is_host: bool | None  # whether the coordinator runs here; None: decide by the endpoint
    read_timeout: float  # seconds, for the operations of a round's store
    job_directory: str | None = None  # of this job, on a filesystem that all nodes share; for failover


def parse_settings(
    endpoint: str, run_id: str, nodes: tuple[int, int], conf: Mapping[str, Any], environment: LaunchEnvironment
) -> RendezvousSettings:
    """Return the settings from the values that torchrun passes to a rendezvous. Raise ValueError for invalid ones."""
    unknown = sorted(set(conf) - {*KNOWN_OPTIONS, ON_HANDLER})
    if unknown:
        raise ValueError(f"--rdzv-conf {', '.join(unknown)}: unknown option; valid are {', '.join(KNOWN_OPTIONS)}")
    host, port = parse_endpoint(endpoint)
    min_nodes, max_nodes = nodes
    node_index = int(_number(conf, "node", 0)) if "node" in conf else environment.node_index
    config = ElasticConfig(
        min_nodes,
        max_nodes,
        spares=int(_number(conf, "spares", 0)),
        last_call=_number(conf, "last_call", LAST_CALL_S if min_nodes == max_nodes else ELASTIC_LAST_CALL_S),
        gather_timeout=_number(conf, "timeout", ElasticConfig.gather_timeout),
        rejoin_timeout=_number(conf, "rejoin", 0.0),
        hosts=environment.hosts,
        failover=bool(conf.get("failover_dir")),
    )
    if config.failover:
        _check_failover(config, node_index)
    return RendezvousSettings(
        host,
        port,
        run_id,
        config,
        connection_token(run_id, conf),
        environment.host,
        node_index=node_index,
        is_host=_boolean(conf, "is_host"),
        read_timeout=_number(conf, "read_timeout", 60.0),
        job_directory=job_directory(str(conf["failover_dir"]), run_id) if config.failover else None,
    )


def job_directory(failover_dir: str, run_id: str) -> str:
    """Return the directory of one job.

    >>> job_directory("/shared/jobs", "4711.0"), job_directory("/shared/jobs", "a/b")
    ('/shared/jobs/torchrun-4711.0', '/shared/jobs/torchrun-a%2Fb')
    """
    return os.path.join(os.path.abspath(failover_dir), f"torchrun-{quote(run_id, safe='')}")


def _check_failover(config: ElasticConfig, node_index: int | None) -> None:
    """Raise ValueError if no other node could coordinate this job: that takes a majority of numbered nodes."""
    if node_index is None:
        raise ValueError("failover_dir: every node needs its number (--node-rank, or --rdzv-conf node=N)")
    if config.expected < MIN_FAILOVER_NODES:
        raise ValueError(f"failover_dir: needs {MIN_FAILOVER_NODES} nodes with the spares: one of two is no majority")
    if 2 * config.min_nodes < config.expected:
        most = f"{config.expected} nodes with the spares"
        raise ValueError(f"failover_dir: --nnodes must be at least half of the {most}, since a majority must take part")


def connection_token(run_id: str, conf: Mapping[str, Any]) -> bytes:
    """Return the secret that authenticates connections. The default, from the run id, prevents only mistakes."""
    if conf.get("token"):
        return str(conf["token"]).encode()
    if conf.get("token_file"):
        with open(conf["token_file"], "rb") as file:
            token = file.read().strip()
        if not token:
            raise ValueError(f"--rdzv-conf token_file={conf['token_file']}: the file is empty")
        return token
    if os.environ.get(TOKEN_VARIABLE):
        return os.environ[TOKEN_VARIABLE].encode()
    return hashlib.sha256(f"muster torchrun {run_id}".encode()).digest()


def _number(conf: Mapping[str, Any], name: str, default: float) -> float:
    try:
        value = float(conf.get(name, default))
    except ValueError:
        value = -1.0
    if value < 0 or (name in ("spares", "node") and value != int(value)):
        raise ValueError(f"--rdzv-conf {name}={conf[name]}: must be a number, 0 or more")
    return value


def _boolean(conf: Mapping[str, Any], name: str) -> bool | None:
    value = str(conf.get(name, "")).lower()
    if value not in ("", "0", "1", "false", "true", "no", "yes"):
        raise ValueError(f"--rdzv-conf {name}={conf[name]}: must be true or false")
    return None if not value else value in ("1", "true", "yes")
