"""Network ports: InfiniBand ports that are not active, and ports that are slower than they should be."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed, skipped

INFINIBAND_PORTS, INTERFACES = "/sys/class/infiniband/*/ports/*", "/sys/class/net/*"
LINKED, ACTIVE = "LinkUp", "ACTIVE"


@dataclass(frozen=True)
class Port:
    """An InfiniBand port as in sysfs; texts such as `4: ACTIVE`, `5: LinkUp` and `400 Gb/sec (4X NDR)`."""

    name: str
    state: str
    physical_state: str
    rate: str


def check_ports(node: CheckedNode, threshold: float) -> Finding:
    ports = [_port(path) for path in sorted(glob.glob(INFINIBAND_PORTS))]
    if ports:
        return judge_ports(ports, threshold)
    return judge_interfaces([_read(os.path.join(path, "speed")) for path in _devices()], threshold)


def judge_ports(ports: Sequence[Port], least: float) -> Finding:
    """Judge InfiniBand ports. A port without a link may be one that is not used."""
    linked = [port for port in ports if port.physical_state.endswith(LINKED)]
    wrong = [
        f"{port.name} has a link but is {port.state.split(': ')[-1]}"
        for port in linked
        if not port.state.endswith(ACTIVE)
    ]
    wrong += [
        f"{port.name} runs at {port.rate}, less than {least:g} Gb/s" for port in linked if _rate(port.rate) < least
    ]
    if wrong:
        return failed("; ".join(wrong))
    if least and not linked:
        return failed(f"none of {len(ports)} InfiniBand ports has a link")
    return passed(f"{len(linked)} of {len(ports)} InfiniBand ports")


def judge_interfaces(speeds: Sequence[str], least: float) -> Finding:
    """Judge the fastest network device by the texts of its speed in Mb/s; -1 without a link."""
    known = [int(speed) / 1000 for speed in speeds if speed.lstrip("-").isdigit() and int(speed) > 0]
    if not least or not known:
        return skipped("no InfiniBand port" if not least else "the speed of the network devices is unknown")
    if max(known) < least:
        return failed(f"the fastest network device runs at {max(known):g} Gb/s, less than {least:g} Gb/s")
    return passed(f"{max(known):g} Gb/s")


def _rate(text: str) -> float:
    number = text.split(" ")[0]
    return float(number) if number.replace(".", "", 1).isdigit() else 0.0


def _devices() -> list[str]:
    """Return the network interfaces of hardware, as opposed to virtual ones."""
    return [path for path in sorted(glob.glob(INTERFACES)) if os.path.exists(os.path.join(path, "device"))]


def _port(path: str) -> Port:
    parts = path.split("/")
    texts = [_read(os.path.join(path, name)) for name in ("state", "phys_state", "rate")]
    return Port(f"{parts[-3]}/{parts[-1]}", *texts)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
