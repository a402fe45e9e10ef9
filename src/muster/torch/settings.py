"""What torchrun's options ask of the rendezvous: `--rdzv-endpoint`, `--rdzv-id`, `--nnodes`, `--rdzv-conf`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.torch.elastic_types import ElasticPlan
from muster.torch.launch_env import LaunchEnvironment

TOKEN_VARIABLE = "MUSTER_TORCH_TOKEN"
LAST_CALL_S = 5.0
ELASTIC_LAST_CALL_S = 30.0  # where fewer nodes than there could be may start: torchrun's own figure
KNOWN = (
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
ON_HANDLER = "on_handler"  # of `muster torchrun` alone: who wants to know the handler that torchrun makes


@dataclass(frozen=True)
class RendezvousSettings:
    """Of one node; `plan` and `token` must be the same on all."""

    host: str  # the endpoint's
    port: int
    run_id: str
    plan: ElasticPlan
    token: bytes
    node: str  # this node's name
    number: int | None  # its place in the order of nodes, if it has one
    is_host: bool | None  # whether the coordinator is here; None: if the endpoint is
    read_timeout: float  # for the operations of a round's store


def settings_of(
    endpoint: str, run_id: str, nodes: tuple[int, int], conf: Mapping[str, Any], place: LaunchEnvironment
) -> RendezvousSettings:
    """From what torchrun hands to a rendezvous (values of --rdzv-conf as strings); ValueError says what is wrong."""
    unknown = sorted(set(conf) - {*KNOWN, ON_HANDLER})
    if unknown:
        raise ValueError(f"--rdzv-conf {', '.join(unknown)}: not known to muster, which knows {', '.join(KNOWN)}")
    host, port = parse_endpoint(endpoint)
    least, most = nodes
    plan = ElasticPlan(
        least,
        most,
        spares=int(_number(conf, "spares", 0)),
        last_call=_number(conf, "last_call", LAST_CALL_S if least == most else ELASTIC_LAST_CALL_S),
        gather_timeout=_number(conf, "timeout", ElasticPlan.gather_timeout),
        rejoin=_number(conf, "rejoin", 0.0),
        hosts=place.hosts,
    )
    return RendezvousSettings(
        host,
        port,
        run_id,
        plan,
        token_of(run_id, conf),
        place.host,
        number=int(_number(conf, "node", 0)) if "node" in conf else place.number,
        is_host=_truth(conf, "is_host"),
        read_timeout=_number(conf, "read_timeout", 60.0),
    )


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """HOST:PORT; an IPv6 address stands in brackets.

    >>> parse_endpoint("n1:29400"), parse_endpoint("[fd00::1]:29400")
    (('n1', 29400), ('fd00::1', 29400))
    """
    host, _, port = endpoint.strip().rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535 or host.count("[") != host.count("]"):
        raise ValueError(f"--rdzv-endpoint {endpoint or '(none)'}: must be HOST:PORT, the same on every node")
    return host.strip("[]"), int(port)


def token_of(run_id: str, conf: Mapping[str, Any]) -> bytes:
    """What a connection must prove to know. Without a secret it is the run id, which keeps out mistakes, not people."""
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


def _truth(conf: Mapping[str, Any], name: str) -> bool | None:
    value = str(conf.get(name, "")).lower()
    if value not in ("", "0", "1", "false", "true", "no", "yes"):
        raise ValueError(f"--rdzv-conf {name}={conf[name]}: must be true or false")
    return None if not value else value in ("1", "true", "yes")
