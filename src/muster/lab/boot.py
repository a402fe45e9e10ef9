"""Render the two shell scripts that start a machine of the lab (pure).

`launch` enters the machine's cgroup and creates its namespaces; `boot` is the first process inside them. `boot` prints
its pid (as seen from outside), waits on its standard input until the network is connected, and becomes tini. If the
starting process dies before that, the end of the input ends the machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from muster.lab.network import bridge, dead_lines, node_lines
from muster.lab.plan import CONTROLLER, PRIVATE_DIRS, LabPlan

_Lines = Sequence[str]


def launch_script(plan: LabPlan, name: str, freezer: Path | None) -> str:
    """Return the script that creates the namespaces; the machine sees its cgroup `freezer` as the root."""
    enter = [f"echo 0 > {_q(freezer / 'cgroup.procs')}"] if freezer else []
    namespaces = "--net --uts --mount --pid" + (" --cgroup" if freezer else "")
    boot = plan.boot_dir / f"{name}.boot"
    return _script([*enter, f"exec unshare {namespaces} --fork -- sh {_q(boot)}"])


def login_script(plan: LabPlan, visible: Sequence[Path]) -> str:
    """Return the script that makes a new mount namespace the login node of a user, and runs its arguments there.

    It is for users that this machine may not know; root needs none of this.
    """
    lines = [*_private_mounts(plan, visible, plan.closed), *_account_mounts(plan)]
    return _script([*lines, 'exec "$@"'])


def boot_script(plan: LabPlan, name: str, visible: Sequence[Path], freezer: Path | None) -> str:
    """Return the script of a machine's first process; `visible` directories stay visible below private ones."""
    return _script(
        [
            # /proc is still that of the outer namespace, so this is the pid outside.
            "read pid rest < /proc/self/stat",
            f"exec 2>> {_q(plan.boot_log(name))}",
            *_private_mounts(plan, visible, plan.private_dirs),
            *_config_mounts(plan, name),
            *([f"mount --bind {_q(freezer)} /sys/fs/cgroup/freezer"] if freezer else []),
            "mount -t proc proc /proc",
            f"hostname {name}",
            *(dead_lines(plan, name) if name != CONTROLLER else []),
            'echo "$pid"',
            "read go || exit 1",
            "exec < /dev/null >&2",
            "ip link set lo up",
            *_daemon(plan, name),
        ]
    )


def _private_mounts(plan: LabPlan, visible: Sequence[Path], private_dirs: Sequence[Path]) -> list[str]:
    """Build a tmpfs for each private directory, with the visible ones bound into it, and move it into place."""
    lines: list[str] = []
    stage = plan.stage_dir
    for private in private_dirs:
        mode = "1777" if private in PRIVATE_DIRS else "755"
        lines.append(f"mount -t tmpfs -o mode={mode} {plan.mark} {_q(stage)}")
        for path in visible:
            if private in path.parents:
                target = _q(stage / path.relative_to(private))
                lines += [f"mkdir -p {target}", f"mount --rbind {_q(path)} {target}"]
        lines.append(f"mount --move {_q(stage)} {_q(private)}")
    return lines


def _account_mounts(plan: LabPlan) -> list[str]:
    files = ("passwd", "group") if plan.users else ()
    return [f"mount --bind {_q(plan.etc_dir / name)} /etc/{name}" for name in files]


def _config_mounts(plan: LabPlan, name: str) -> list[str]:
    """Mount hosts, resolv.conf, accounts, and /etc/slurm, so that commands find slurm.conf without SLURM_CONF."""
    etc = plan.etc_dir
    return [
        f"mount --bind {_q(plan.hosts_file(name))} /etc/hosts",
        f"if [ -e /etc/resolv.conf ]; then mount --bind {_q(etc / 'resolv.conf')} /etc/resolv.conf; fi",
        f"if [ -d /etc/slurm ]; then mount --bind {_q(etc)} /etc/slurm; fi",
        *_account_mounts(plan),
    ]


def _daemon(plan: LabPlan, name: str) -> list[str]:
    conf = _q(plan.slurm_conf)
    if name != CONTROLLER:
        # slurmd looks for slurmstepd only where the distribution has it.
        stepd = f" -d {_q(plan.slurm_prefix / 'bin' / 'slurmstepd')}" if plan.slurm_prefix else ""
        return [
            *node_lines(plan, name),
            f"exec tini -- slurmd -D -b -N {name} -f {conf}{stepd}",
        ]
    munge = plan.munge_dir
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = " ".join(f"--{option}={_q(munge / file)}" for option, file in files.items())
    return [
        *_kernel_settings(plan),
        # --force, because munged refuses a state directory that only root can enter.
        f"munged --force --num-threads=10 {options}",
        f"exec tini -- slurmctld -D -f {conf}",
    ]


def _kernel_settings(plan: LabPlan) -> list[str]:
    """Make the controller's network namespace the router of the lab.

    It answers packets to the outside with "unreachable" at once. Fast neighbour discovery makes connections to a dead
    node fail before Slurm's TCPTimeout of 2 s, after which slurmctld would retry ten times: with it a dead node is
    DOWN after SlurmdTimeout, without it 15 to 20 s later.
    """
    net = f"/proc/sys/net/ipv{6 if plan.ipv6 else 4}"
    if plan.ipv6:
        values = {f"{net}/conf/all/forwarding": 1, f"{net}/icmp/ratelimit": 0}
    else:
        values = {f"{net}/ip_forward": 1, f"{net}/icmp_ratelimit": 0, f"{net}/conf/all/send_redirects": 0}
    for network in plan.networks:
        neighbour = f"{net}/neigh/{bridge(network)}"
        if not plan.ipv6:
            values[f"{net}/conf/{bridge(network)}/send_redirects"] = 0
        values[f"{neighbour}/delay_first_probe_time"] = 1
        values[f"{neighbour}/retrans_time_ms"] = 200
        values[f"{neighbour}/base_reachable_time_ms"] = 3000
    return [f"echo {value} > {path}" for path, value in values.items()]


def _script(lines: _Lines) -> str:
    return "\n".join(["#!/bin/sh", "set -e", *lines]) + "\n"


def _q(path: Path) -> str:
    return shlex.quote(str(path))
