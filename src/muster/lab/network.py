"""The lab's networks: bridges in the controller's namespace, with veth pairs to each node and one to this machine.

The bridges are not in the machine's own namespace, so no firewall rule of the machine touches the lab's packets, and
the links between the nodes vanish with the namespaces. The only link the machine itself gets is `plan.host_link`; it
leads to network 0, which Slurm uses. Extra networks connect the nodes alone.

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
from muster.lab.plan import CONTROLLER, DEAD_INTERFACE, LOGIN, LabPlan
from muster.lab.requirements import SYSTEM_PATH


def bridge(network: int) -> str:
    return f"br{network}"


def port(name: str, network: int = 0) -> str:
    """The bridge's end of a machine's link, in the controller's namespace."""
    return f"to{network}-{name}"


def check_free(plan: LabPlan) -> None:
    """Refuse to lay a network over one that exists."""
    if host_link_exists(plan):
        raise LabError(f"network link {plan.host_link} exists: a lab is up or left it; see `muster lab down`")
    wanted = ipaddress.ip_network(plan.subnet())
    family = "-6" if plan.ipv6 else "-4"
    for route in json.loads(_run(["ip", "-json", family, "route", "show", "table", "all"]).stdout or "[]"):
        if route.get("type") not in (None, "unicast") or route["dst"] == "default":
            continue
        if wanted.overlaps(ipaddress.ip_network(route["dst"], strict=False)):
            raise LabError(
                f"the lab's addresses {wanted} overlap the route to {route['dst']} via {route.get('dev')}; "
                "set MUSTER_LAB_DIR to another directory (each directory has addresses of its own)"
            )


def lay_bridge(plan: LabPlan, controller_pid: int) -> None:
    """The bridges with the controller's addresses, and this machine's link to the first."""
    single = plan.single
    _ip_batch(
        [
            f"link add {plan.host_link} address {plan.mac(LOGIN)} type veth "
            f"peer name {port(LOGIN)} netns {controller_pid}",
            f"address add {plan.address(LOGIN)}/{single} dev {plan.host_link}{_settled(plan)}",
            f"link set {plan.host_link} up",
            f"route add {plan.address(CONTROLLER)}/{single} dev {plan.host_link} src {plan.address(LOGIN)}",
            f"route add {plan.subnet()} via {plan.address(CONTROLLER)} src {plan.address(LOGIN)}",
        ]
    )
    lines: list[str] = []
    for network in plan.networks:
        prefix = plan.subnet(network).rpartition("/")[2]
        lines += [
            f"link add {bridge(network)} address {plan.mac(CONTROLLER, network)} type bridge",
            f"address add {plan.address(CONTROLLER, network)}/{prefix} dev {bridge(network)}{_settled(plan)}",
            f"link set {bridge(network)} up",
        ]
    lines.append(f"link set {port(LOGIN)} master {bridge(0)} up")
    _ip_batch(lines, netns_of=controller_pid)


def connect(plan: LabPlan, controller_pid: int, pids: Mapping[str, int]) -> None:
    """Links from the bridges into the namespace of each named machine, where they are called eth0, eth1 and so on."""
    lines: list[str] = []
    for name, pid in pids.items():
        for network in plan.networks:
            at, mac = port(name, network), plan.mac(name, network)
            lines.append(f"link add {at} type veth peer name eth{network} address {mac} netns {pid}")
            lines.append(f"link set {at} master {bridge(network)} up")
    _ip_batch(lines, netns_of=controller_pid)


def node_lines(plan: LabPlan, name: str) -> list[str]:
    """What a node's own boot script does: addresses, and routes by way of the controller."""
    lines = []
    for network in plan.networks:
        device, router = f"eth{network}", plan.address(CONTROLLER, network)
        prefix = plan.subnet(network).rpartition("/")[2]
        lines += [
            f"ip address add {plan.address(name, network)}/{prefix} dev {device} noprefixroute{_settled(plan)}",
            f"ip link set {device} up",
            f"ip route add {router}/{plan.single} dev {device}",
            f"ip route add {plan.subnet(network) if network else 'default'} via {router}",
        ]
    return lines


def dead_lines(plan: LabPlan, name: str) -> list[str]:
    """An interface with an address and a carrier, whose other end nobody is at."""
    if not plan.dead_interface:
        return []
    return [
        f"ip link add {DEAD_INTERFACE} type veth peer name {DEAD_INTERFACE}-end",
        f"ip address add {plan.dead_address(name)} dev {DEAD_INTERFACE}{_settled(plan)}",
        f"ip link set {DEAD_INTERFACE} up",
        f"ip link set {DEAD_INTERFACE}-end up",
    ]


def _settled(plan: LabPlan) -> str:
    """An IPv6 address can be used at once only without the search for another owner."""
    return " nodad" if plan.ipv6 else ""


def set_links(plan: LabPlan, controller_pid: int, name: str, state: str) -> None:
    """Cut (`down`) or restore (`up`) a node's links."""
    _ip_batch([f"link set {port(name, network)} {state}" for network in plan.networks], netns_of=controller_pid)


def drop_links(plan: LabPlan, controller_pid: int, name: str) -> None:
    """Remove a dead node's links at once (the kernel would, some time after the namespace's end)."""
    for network in plan.networks:
        _run([*_in_netns(controller_pid), "ip", "link", "delete", port(name, network)])


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
