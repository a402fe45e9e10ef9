"""The lab's networks: bridges in the controller's namespace, with veth pairs to each node and one to this machine.

The bridges are not in the host's namespace, so no firewall rule of the host affects the lab's packets, and the links
between the nodes vanish with the namespaces. The only link on the host is `plan.host_link`, to network 0, which Slurm
uses. Extra networks connect only the nodes.

The controller is the router of all machines, so each has only one neighbour. The kernel keeps 1024 neighbours for all
namespaces together (gc_thresh3): a full mesh of 64 nodes would overflow it, for the whole host.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
from collections.abc import Iterable, Mapping

from muster.lab.errors import LabError
from muster.lab.plan import CONTROLLER, DEAD_INTERFACE, LOGIN, LabPlan
from muster.lab.requirements import SYSTEM_PATH


def bridge(network: int) -> str:
    return f"br{network}"


def port(name: str, network: int = 0) -> str:
    """Return the name of the bridge's end of a machine's link, in the controller's namespace."""
    return f"to{network}-{name}"


def check_free(plan: LabPlan) -> None:
    """Raise LabError if the lab's link exists or its addresses overlap an existing route."""
    if host_link_exists(plan):
        raise LabError(f"network link {plan.host_link} exists: a lab is up or left it; see `muster lab down`")
    wanted = ipaddress.ip_network(plan.subnet())
    family = "-6" if plan.ipv6 else "-4"
    for route in json.loads(_run(["ip", "-json", family, "route", "show", "table", "all"]).stdout or "[]"):
        if route.get("type") not in (None, "unicast") or route["dst"] == "default":
            continue
        if route.get("dev") == plan.host_link:  # of a lab that went down a moment ago: the link is gone already
            continue
        if wanted.overlaps(ipaddress.ip_network(route["dst"], strict=False)):
            raise LabError(
                f"the lab's addresses {wanted} overlap the route to {route['dst']} via {route.get('dev')}; "
                "set MUSTER_LAB_DIR to another directory (addresses depend on the directory)"
            )


def create_bridges(plan: LabPlan, controller_pid: int) -> None:
    """Create the bridges with the controller's addresses, and this machine's link to the first."""
    single = plan.single_prefix
    _ip_batch(
        [
            f"link add {plan.host_link} address {plan.mac(LOGIN)} type veth "
            f"peer name {port(LOGIN)} netns {controller_pid}",
            f"address add {plan.address(LOGIN)}/{single} dev {plan.host_link}{_skip_dad(plan)}",
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
            f"address add {plan.address(CONTROLLER, network)}/{prefix} dev {bridge(network)}{_skip_dad(plan)}",
            f"link set {bridge(network)} up",
        ]
    lines.append(f"link set {port(LOGIN)} master {bridge(0)} up")
    _ip_batch(lines, netns_of=controller_pid)


def connect(plan: LabPlan, controller_pid: int, pids: Mapping[str, int]) -> None:
    """Create links from the bridges into the namespace of each machine, where they are named eth0, eth1, ..."""
    lines: list[str] = []
    for name, pid in pids.items():
        for network in plan.networks:
            at, mac = port(name, network), plan.mac(name, network)
            lines.append(f"link add {at} type veth peer name eth{network} address {mac} netns {pid}")
            lines.append(f"link set {at} master {bridge(network)} up")
    _ip_batch(lines, netns_of=controller_pid)


def node_lines(plan: LabPlan, name: str) -> list[str]:
    """Return the lines of a node's boot script that set addresses, and routes through the controller."""
    lines = []
    for network in plan.networks:
        device, router = f"eth{network}", plan.address(CONTROLLER, network)
        prefix = plan.subnet(network).rpartition("/")[2]
        lines += [
            f"ip address add {plan.address(name, network)}/{prefix} dev {device} noprefixroute{_skip_dad(plan)}",
            f"ip link set {device} up",
            f"ip route add {router}/{plan.single_prefix} dev {device}",
            f"ip route add {plan.subnet(network) if network else 'default'} via {router}",
        ]
    return lines


def dead_lines(plan: LabPlan, name: str) -> list[str]:
    """Return the lines that create an interface with an address and a carrier, but without a peer."""
    if not plan.dead_interface:
        return []
    return [
        f"ip link add {DEAD_INTERFACE} type veth peer name {DEAD_INTERFACE}-end",
        f"ip address add {plan.dead_address(name)} dev {DEAD_INTERFACE}{_skip_dad(plan)}",
        f"ip link set {DEAD_INTERFACE} up",
        f"ip link set {DEAD_INTERFACE}-end up",
    ]


def _skip_dad(plan: LabPlan) -> str:
    """Skip IPv6 duplicate address detection, which would delay the use of the address."""
    return " nodad" if plan.ipv6 else ""


def set_links(plan: LabPlan, controller_pid: int, name: str, state: str) -> None:
    """Disconnect (`down`) or restore (`up`) a node's links."""
    _ip_batch([f"link set {port(name, network)} {state}" for network in plan.networks], netns_of=controller_pid)


def drop_links(plan: LabPlan, controller_pid: int, name: str) -> None:
    """Remove a dead node's links at once; the kernel does it some time after the namespace's end."""
    for network in plan.networks:
        _run([*_in_netns(controller_pid), "ip", "link", "delete", port(name, network)])


def links_up(controller_pid: int, names: Iterable[str]) -> dict[str, bool]:
    """Return whether the link of each named machine is up, without machines that have none."""
    output = _run([*_in_netns(controller_pid), "ip", "-json", "link", "show"]).stdout
    flags = {link["ifname"]: link["flags"] for link in json.loads(output or "[]") if link.get("ifname")}
    return {name: "UP" in flags[port(name)] for name in names if port(name) in flags}


def host_link_exists(plan: LabPlan) -> bool:
    """Return whether this machine has the lab's link; /sys may show another network namespace."""
    return any(name == plan.host_link for _, name in socket.if_nameindex())


def remove(plan: LabPlan) -> None:
    """Remove this machine's link; the others end with their namespaces."""
    done = _run(["ip", "link", "delete", plan.host_link]) if host_link_exists(plan) else None
    # The kernel may have removed it first, with the controller's namespace.
    if done and done.returncode and host_link_exists(plan):
        raise LabError(f"network link {plan.host_link} could not be removed: {done.stderr.strip()}")


def _in_netns(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


def _ip_batch(lines: Iterable[str], netns_of: int | None = None) -> None:
    argv = [*(_in_netns(netns_of) if netns_of else []), "ip", "-batch", "-"]
    done = _run(argv, "\n".join(lines) + "\n")
    if done.returncode:
        raise LabError(f"the lab's network could not be configured: {done.stderr.strip()}")


def _run(argv: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": SYSTEM_PATH}
    return subprocess.run(argv, input=stdin, env=env, capture_output=True, text=True, check=False)
