"""The lab's network: a bridge in the controller's namespace, with a veth pair to each node and one to this machine.

The bridge is not in the machine's own namespace, so no firewall rule of the machine touches the lab's packets, and the
links between the nodes vanish with the namespaces. The only link the machine itself gets is `plan.host_link`.

The controller is everyone's router, so each machine has one neighbour only. The kernel holds 1024 neighbours for all
namespaces together (gc_thresh3): 64 nodes that all knew each other would overflow it, for the whole machine.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from muster.lab.errors import LabError
from muster.lab.plan import BRIDGE, CONTROLLER, LOGIN, LabPlan
from muster.lab.requirements import SYSTEM_PATH


def port(name: str) -> str:
    """The bridge's end of a machine's link, in the controller's namespace."""
    return f"to-{name}"


def check_free(plan: LabPlan) -> None:
    """Refuse to lay a network over one that exists."""
    if host_link_exists(plan):
        raise LabError(f"network link {plan.host_link} exists: a lab is up or left it; see `muster lab down`")
    wanted = ipaddress.ip_network(plan.subnet)
    for route in json.loads(_run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout or "[]"):
        if route.get("type") not in (None, "unicast") or route["dst"] == "default":
            continue
        if wanted.overlaps(ipaddress.ip_network(route["dst"], strict=False)):
            raise LabError(
                f"the lab's addresses {plan.subnet} overlap the route to {route['dst']} via {route.get('dev')}; "
                "set MUSTER_LAB_DIR to another directory (each directory has addresses of its own)"
            )


def lay_bridge(plan: LabPlan, controller_pid: int) -> None:
    """The bridge with the controller's address, and this machine's link to it."""
    _ip_batch(
        [
            f"link add {plan.host_link} address {plan.mac(LOGIN)} type veth "
            f"peer name {port(LOGIN)} netns {controller_pid}",
            f"address add {plan.address(LOGIN)}/32 dev {plan.host_link}",
            f"link set {plan.host_link} up",
            f"route add {plan.address(CONTROLLER)}/32 dev {plan.host_link} src {plan.address(LOGIN)}",
            f"route add {plan.subnet} via {plan.address(CONTROLLER)} src {plan.address(LOGIN)}",
        ]
    )
    _ip_batch(
        [
            f"link add {BRIDGE} address {plan.mac(CONTROLLER)} type bridge",
            f"address add {plan.address(CONTROLLER)}/24 dev {BRIDGE}",
            f"link set {BRIDGE} up",
            f"link set {port(LOGIN)} master {BRIDGE} up",
        ],
        netns_of=controller_pid,
    )


def connect(plan: LabPlan, controller_pid: int, pids: Mapping[str, int]) -> None:
    """A link from the bridge into the namespace of each named machine, where it is called eth0."""
    lines: list[str] = []
    for name, pid in pids.items():
        lines.append(f"link add {port(name)} type veth peer name eth0 address {plan.mac(name)} netns {pid}")
        lines.append(f"link set {port(name)} master {BRIDGE} up")
    _ip_batch(lines, netns_of=controller_pid)


def set_link(controller_pid: int, name: str, state: str) -> None:
    """Cut (`down`) or restore (`up`) a node's link."""
    _ip_batch([f"link set {port(name)} {state}"], netns_of=controller_pid)


def drop_link(controller_pid: int, name: str) -> None:
    """Remove a dead node's link at once (the kernel would, some time after the namespace's end)."""
    _run([*_in_netns(controller_pid), "ip", "link", "delete", port(name)])


def links_up(controller_pid: int, names: Iterable[str]) -> dict[str, bool]:
    """For each name that has a link: whether it is up."""
    output = _run([*_in_netns(controller_pid), "ip", "-json", "link", "show"]).stdout
    flags = {link["ifname"]: link["flags"] for link in json.loads(output or "[]") if link.get("ifname")}
    return {name: "UP" in flags[port(name)] for name in names if port(name) in flags}


def host_link_exists(plan: LabPlan) -> bool:
    return Path("/sys/class/net", plan.host_link).exists()


def remove(plan: LabPlan) -> None:
    """Remove this machine's link; the others end with their namespaces."""
    done = _run(["ip", "link", "delete", plan.host_link]) if host_link_exists(plan) else None
    # The kernel may have been quicker: the link's other end has gone with the controller's namespace.
    if done and done.returncode and host_link_exists(plan):
        raise LabError(f"network link {plan.host_link} could not be removed: {done.stderr.strip()}")


def _in_netns(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


def _ip_batch(lines: Iterable[str], netns_of: int | None = None) -> None:
    argv = [*(_in_netns(netns_of) if netns_of else []), "ip", "-batch", "-"]
    done = _run(argv, "\n".join(lines) + "\n")
    if done.returncode:
        raise LabError(f"laying the lab's network failed: {done.stderr.strip()}")


def _run(argv: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": SYSTEM_PATH}
    return subprocess.run(argv, input=stdin, env=env, capture_output=True, text=True, check=False)
