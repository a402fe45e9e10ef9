"""Placeholders, variable names, URLs and the inherited environment of a service. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from muster.agent.ray.settings import join_address
from muster.agent.service_model import ServiceDefinition

_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z][a-z0-9_-]*)\}")  # ${name} is the shell's
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "MUSTER_*")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the known placeholders; other braces stay as they are.

    >>> fill("serve --port {http} '{}' {x} ${http}", {"http": "7001"})
    "serve --port 7001 '{}' {x} ${http}"
    """
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def placeholder_values(ports: Mapping[str, int], address: str, directory: str) -> dict[str, str]:
    """Return placeholder values: each port, `port` for the first, the node's address, the instance's directory."""
    first = {"port": str(next(iter(ports.values())))} if ports else {}
    return {**first, **{name: str(number) for name, number in ports.items()}, "address": address, "dir": directory}


def variable_part(name: str) -> str:
    """Return the name in the form used inside variable names.

    >>> variable_part("code-judge")
    'CODE_JUDGE'
    """
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def port_variables(ports: Mapping[str, int]) -> dict[str, str]:
    return {f"MUSTER_PORT_{variable_part(name)}": str(number) for name, number in ports.items()}


def main_port(ports: Sequence[str]) -> str | None:
    """Return the port that the service's URL uses: http, else https, else the first."""
    return next((name for name in ("http", "https") if name in ports), next(iter(ports), None))


def endpoint_url(service: ServiceDefinition, address: str, ports: Mapping[str, int]) -> str | None:
    """Return the service's URL at this address; None for a service without ports.

    >>> endpoint_url(ServiceDefinition("judge", ready={"http": "/"}), "10.0.0.1", {"api": 7001})
    'http://10.0.0.1:7001'
    """
    name = main_port(list(ports))
    if name is None:
        return None
    scheme = name if name in ("http", "https") else "http" if "http" in service.ready else "tcp"
    return f"{scheme}://{join_address(address, ports[name])}"


def inherited_environment(base: Mapping[str, str], allowed: Sequence[str] | None) -> dict[str, str]:
    """Return the part of the job's environment that the service inherits; all of it if `allowed` is None.

    >>> inherited_environment({"PATH": "/bin", "HF_HOME": "/x", "SECRET": "y"}, ["HF_*"])
    {'PATH': '/bin', 'HF_HOME': '/x'}
    """
    if allowed is None:
        return dict(base)
    return {name: value for name, value in base.items() if _matches(name, [*INHERITED, *allowed])}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in patterns)
