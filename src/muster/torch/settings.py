"""The settings of the rendezvous from torchrun's options --rdzv-endpoint, --rdzv-id, --nnodes and --rdzv-conf."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.torch.elastic_types import ElasticConfig
from muster.torch.endpoint import parse_endpoint
from muster.torch.launch_env import LaunchEnvironment

BACKEND = "muster"  # of torchrun's --rdzv-backend
TOKEN_VARIABLE = "MUSTER_TORCH_TOKEN"
LAST_CALL_S = 5.0
ELASTIC_LAST_CALL_S = 30.0  # if the job may start with fewer nodes than the maximum: torchrun's value
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


def parse_settings(
    endpoint: str, run_id: str, nodes: tuple[int, int], conf: Mapping[str, Any], environment: LaunchEnvironment
) -> RendezvousSettings:
    """Return the settings from the values that torchrun passes to a rendezvous. Raise ValueError for invalid ones."""
    unknown = sorted(set(conf) - {*KNOWN_OPTIONS, ON_HANDLER})
    if unknown:
        raise ValueError(f"--rdzv-conf {', '.join(unknown)}: unknown option; valid are {', '.join(KNOWN_OPTIONS)}")
    host, port = parse_endpoint(endpoint)
    min_nodes, max_nodes = nodes
    config = ElasticConfig(
        min_nodes,
        max_nodes,
        spares=int(_number(conf, "spares", 0)),
        last_call=_number(conf, "last_call", LAST_CALL_S if min_nodes == max_nodes else ELASTIC_LAST_CALL_S),
        gather_timeout=_number(conf, "timeout", ElasticConfig.gather_timeout),
        rejoin_timeout=_number(conf, "rejoin", 0.0),
        hosts=environment.hosts,
    )
    return RendezvousSettings(
        host,
        port,
        run_id,
        config,
        connection_token(run_id, conf),
        environment.host,
        node_index=int(_number(conf, "node", 0)) if "node" in conf else environment.node_index,
        is_host=_boolean(conf, "is_host"),
        read_timeout=_number(conf, "read_timeout", 60.0),
    )


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
