"""The starter: imports Ray while the nodes still gather, then runs `ray start` without having to import anything.

Importing Ray is a large part of bringing a node up, so this runs as a process of its own from the first moment, in
the user's interpreter: `python -c <this source>`. Commands come as JSON lines on stdin, reports go out on stdout:

    in    {"start": [args of ray start], "gcs": [host, port] | null, "nodes": N, "client_port": P}
    out   {"event": "warm", "ray": version} | {"event": "no_ray", "error": ..}
          {"event": "refused", "error": ..}        this Ray cannot do what is asked: no use in trying again
          {"event": "started", "code": 0}          `ray start` returned
          {"event": "alive", "ranks": [0, 2]}      on the head: the nodes in Ray's own table, whenever it changes

`ray start` runs in a forked child. On the head the parent reads the node table from the GCS meanwhile: it shows a
node a second or more before that node's own `ray start` returns.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
import traceback
from typing import Any

LOOK_S = 0.05  # how often the node table is read; the GCS answers in about a millisecond
RANK_LABEL = "muster.io/rank"
NODE_LABEL = "muster.io/node"  # its number in the allocation: two nodes may have had one rank, one after the other
IPV6_SINCE = (2, 49)  # older releases of Ray take the address apart at its colons, and wait for a GCS they never find


def report(event: str, **fields: Any) -> None:
    os.write(REPORTS, json.dumps({"event": event, **fields}).encode() + b"\n")


def fork_ray_start(args: list[str]) -> int:
    """Run `ray start` in a child; returns its pid."""
    from ray.scripts import scripts

    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        keep_temp_dir(args)
        scripts.start.main(args=args, prog_name="ray start", standalone_mode=False)
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def keep_temp_dir(args: list[str]) -> None:
    """An older `ray start` (2.46) drops a worker's --temp-dir for the head's; Ray itself can do with one of its own."""
    from ray._private import parameter

    given = next((arg.partition("=")[2] for arg in args if arg.startswith("--temp-dir=")), None)
    made = parameter.RayParams.__init__

    def make(self: Any, *more: Any, **fields: Any) -> None:
        made(self, *more, **{**fields, "temp_dir": fields.get("temp_dir") or given})

    parameter.RayParams.__init__ = make  # type: ignore[method-assign, unused-ignore]


def client_arguments(order: dict[str, Any]) -> list[str]:
    """A head starts a Ray client server on port 10001 wherever Ray's client is installed: into the block with it."""
    from ray.scripts import scripts

    if hasattr(scripts, "get_ray_client_dependency_error"):
        installed = scripts.get_ray_client_dependency_error() is None
    else:  # Ray 2.46
        installed = getattr(scripts, "check_ray_client_dependencies_installed", lambda: False)()
    return [f"--ray-client-server-port={order['client_port']}"] if order["gcs"] and installed else []


def refusal(version: str, args: list[str]) -> str | None:
    """Why this Ray could not start with these arguments, where it would not say so itself, or not at once."""
    ipv6 = [arg.partition("=")[2] for arg in args if arg.startswith("--node-ip-address=") and ":" in arg]
    if ipv6 and tuple(map(int, version.split(".")[:2])) < IPV6_SINCE:
        since = ".".join(map(str, IPV6_SINCE))
        return f"Ray {version} cannot use the IPv6 address {ipv6[0]}: it needs Ray {since}, or --interface with IPv4"
    if "--include-dashboard=true" in args:
        try:
            import ray.dashboard.optional_deps  # noqa: F401
        except ImportError as error:
            return f"the dashboard needs the packages of ray[default]: {error}"
    return None


def exit_code(pid: int) -> int | None:
    """The child's code; None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1.0).close()
        return True
    except OSError:
        return False


def join(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def alive_ranks(client: Any) -> list[int] | None:
    """Numbers of the nodes that Ray itself calls alive; None when it does not answer."""
    try:
        infos = client.get_all_node_info().values()
    except Exception as error:  # of whatever class: Ray's differ between releases
        print(f"muster: Ray's node table could not be read: {error}", file=sys.stderr, flush=True)
        return None
    return sorted(int(info.labels[NODE_LABEL]) for info in infos if info.state == 0 and NODE_LABEL in info.labels)


def watch(address: tuple[str, int], child: int, nodes: int) -> None:
    """Report the head's child and the node table until both are complete, or the agent closes our stdin."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined, unused-ignore]

    client: Any = None
    seen: list[int] = []
    code: int | None = None
    while code is None or len(seen) < nodes:
        if code is None:
            code = exit_code(child)
            if code is not None:
                report("started", code=code)
            if code:
                return
        if client is None and listens(address):
            client = GcsClient(address=join(address))
        ranks = seen if client is None else alive_ranks(client)
        if ranks is None:
            client = None  # it did not answer: connect anew
        elif ranks != seen:
            seen = ranks
            report("alive", ranks=ranks)
        if select.select([0], [], [], LOOK_S)[0]:
            return


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if entry]  # a ray.py in the user's directory is not Ray
    try:
        import ray
        import ray._raylet
        from ray.scripts import scripts  # noqa: F401
    except ImportError as error:
        report("no_ray", error=str(error))
        return
    report("warm", ray=ray.__version__, python=sys.version.split()[0], time=time.time())
    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    unable = refusal(ray.__version__, order["start"])
    if unable is not None:
        report("refused", error=unable)
        return
    child = fork_ray_start(order["start"] + client_arguments(order))
    if order["gcs"]:
        watch((order["gcs"][0], order["gcs"][1]), child, order["nodes"])
    else:
        report("started", code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    REPORTS = os.dup(1)  # Ray's own output goes to the node's log, never between the reports
    os.dup2(2, 1)
    main()
