"""The starter process: imports Ray while the nodes still arrive, then runs `ray start` without another import.

The import of Ray is a large part of a node's start, so the agent runs this early, in the user's interpreter:
`python -c <this source>`. It reads commands as JSON lines from stdin and writes reports to stdout:

    in    {"start": [args], "gcs": [host, port] | null, "nodes": N, "client_port": P, "storage": DIR | null,
           "replaces": node index | null}
    out   {"event": "warm", "ray": version} | {"event": "no_ray", "error": ..}
          {"event": "refused", "error": ..}        this Ray does not support the arguments: a retry would fail, too
          {"event": "started", "code": 0, "stored": B}    `ray start` returned; B: the GCS stores its state in DIR
          {"event": "alive", "ranks": [0, 2]}      on the head: the live nodes in Ray's table, whenever it changes

`ray start` runs in a forked child. On the head the parent meanwhile polls the node table in the GCS: one process knows
when each of a thousand nodes is alive. Once all are, it ends; then the end of `ray start` shows that a spare is alive.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import socket
import sys
import threading
import time
import traceback
from typing import Any

OWN_NODE_POLL_S = 0.05  # interval at which `ray start` looks whether its node is alive
OWN_NODE_POLLS_PER_S = 1000  # of all nodes: the GCS of a large cluster is busy while they start
OWN_NODE_TIMEOUT_S = 240.0  # a raylet takes minutes on a busy host or a slow filesystem; the agent has its own limit
NODE_TABLE_POLL_S = 0.05  # interval of reads of the node table; the GCS answers in about a millisecond
LATE_NODES_S = 30.0  # after so long without a change, the missing nodes may never come (--min-nodes)
LATE_NODE_POLL_S = 5.0  # then: the end of `ray start` on a late node reports it sooner
REMOVAL_TIMEOUT_S = 5.0  # for a node in Ray's table: the GCS answers in milliseconds, and Ray itself needs 15 s
RANK_LABEL = "muster.io/rank"
NODE_LABEL = "muster.io/node"  # the node index: a spare may have taken the rank of another node
GPU_DOMAIN_LABEL = "ray.io/gpu-domain"  # of topology strategies of placement groups
GPU_DOMAIN_SINCE = (2, 56)  # first release of Ray with them; some older ones refuse labels that begin with ray.io
# A call of gRPC without its library, which Ray's Python does not need (RFC 9113).
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA_FRAME, HEADERS_FRAME, SETTINGS_FRAME = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
IPV6_SINCE = (2, 49)  # older releases of Ray split the address at its colons, and wait forever for the GCS


def report(event: str, **fields: Any) -> None:
    os.write(REPORTS, json.dumps({"event": event, **fields}).encode() + b"\n")


def fork_ray_start(args: list[str], nodes: int, replaces: int | None = None) -> int:
    """Run `ray start` in a child; return its pid. `nodes`: of the cluster; `replaces`: a lost node to remove first."""
    from ray.scripts import scripts

    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        keep_temp_dir(args)
        wait_for_own_node(nodes)
        if replaces is not None:
            remove_lost_node(option(args, "--address"), replaces)
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
    """Make Ray 2.46 use a worker's --temp-dir: its `ray start` replaces it by the head's, though Ray supports both."""
    from ray._private import parameter

    given = option(args, "--temp-dir")
    original = parameter.RayParams.__init__

    def patched(self: Any, *more: Any, **fields: Any) -> None:
        original(self, *more, **{**fields, "temp_dir": fields.get("temp_dir") or given})

    parameter.RayParams.__init__ = patched  # type: ignore[method-assign, unused-ignore]


def wait_for_own_node(nodes: int) -> None:
    """Make `ray start` return as soon as its node is alive, and wait for that while its raylet lives.

    Ray itself looks once a second, and a promoted spare waits for it, and gives up after 30 s, also on a host that is
    merely slow. In a release of Ray without these functions, or with other arguments, `ray start` returns as it would.
    """
    try:
        from ray._private import services

        original = services.get_node
    except (ImportError, AttributeError):
        return

    def patched(gcs_address: str, node_id: str) -> Any:
        try:
            wait_until_alive(gcs_address, node_id, max(OWN_NODE_POLL_S, nodes / OWN_NODE_POLLS_PER_S))
        except ChildProcessError:
            raise
        except Exception as error:
            print(f"muster: whether this node is alive is left to Ray: {error!r}", file=sys.stderr, flush=True)
        return original(gcs_address, node_id)  # type: ignore[no-untyped-call, unused-ignore]

    services.get_node = patched


def wait_until_alive(gcs_address: str, node_id: str, interval: float) -> None:
    """Wait until the GCS lists the node as alive, at most OWN_NODE_TIMEOUT_S; raise if its raylet has exited."""
    from ray import NodeID
    from ray._raylet import GcsClient  # type: ignore[attr-defined, unused-ignore]

    client, end = GcsClient(address=gcs_address), time.monotonic() + OWN_NODE_TIMEOUT_S
    while time.monotonic() < end and not client.check_alive([NodeID.from_hex(node_id)])[0]:
        if raylet_has_exited():
            raise ChildProcessError("the raylet has exited during its start; see raylet.err")
        time.sleep(interval)


def raylet_has_exited() -> bool:
    """Return whether a raylet that this thread has started is dead. Ray does not check that while it waits."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children", encoding="utf-8") as file:
            children = file.read().split()
        for child in children:
            with open(f"/proc/{child}/stat", encoding="utf-8", errors="replace") as file:
                if " (raylet) Z " in file.read():
                    return True
    except OSError:  # a child was reaped meanwhile
        pass
    return False


def remove_lost_node(gcs_address: str | None, node_index: int) -> None:
    """Remove a lost node from Ray's node table, which would list it as alive until Ray's health check has failed.

    Ray's Python has no function for that: the request is the one that a raylet sends when it exits. Where it has no
    effect, for example with TLS, the health check removes the node later.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined, unused-ignore]

    try:
        assert gcs_address is not None
        client, end = GcsClient(address=gcs_address), time.monotonic() + REMOVAL_TIMEOUT_S
        lost = ids_of_alive(client, node_index)
        if not lost:
            return
        host, _, port = gcs_address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REMOVAL_TIMEOUT_S) as connection:
            connection.sendall(removal_request(gcs_address, client.cluster_id.hex(), lost))
            while ids_of_alive(client, node_index):
                if time.monotonic() > end:
                    raise TimeoutError(f"it is alive {REMOVAL_TIMEOUT_S:g} s after the request")
                time.sleep(NODE_TABLE_POLL_S)
    except Exception as error:  # as in `alive_nodes`
        text = f"muster: removing the lost node {node_index} is left to Ray's health check: {error!r}"
        print(text, file=sys.stderr, flush=True)


def ids_of_alive(client: Any, node_index: int) -> list[bytes]:
    """Return the ids of this node's entries in the node table that are alive."""
    label, infos = str(node_index), client.get_all_node_info().values()
    return [info.node_id for info in infos if info.state == 0 and info.labels.get(NODE_LABEL) == label]


def removal_request(authority: str, cluster_id: str, node_ids: list[bytes]) -> bytes:
    """Return the bytes of a new HTTP/2 connection that calls UnregisterNode for each node.

    The answers need not be read: the node table shows the effect.
    """
    from ray.core.generated.gcs_service_pb2 import UnregisterNodeRequest  # type: ignore[attr-defined, unused-ignore]

    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/ray.rpc.NodeInfoGcsService/UnregisterNode",
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
        "ray_cluster_id": cluster_id,
    }
    if os.environ.get("RAY_AUTH_MODE") == "token":
        with open(os.environ["RAY_AUTH_TOKEN_PATH"], encoding="ascii") as file:
            headers["authorization"] = f"Bearer {file.read().strip()}"
    # Each header is a literal that is not added to the table (RFC 7541, 6.2.2), without Huffman codes.
    block = b"".join(b"\0" + hpack_string(name) + hpack_string(value) for name, value in headers.items())
    died = {"reason": "UNEXPECTED_TERMINATION", "reason_message": "Muster lost the node"}
    frames = [http2_frame(SETTINGS_FRAME, 0, 0, b"")]
    for number, node_id in enumerate(node_ids):
        message = UnregisterNodeRequest(node_id=node_id, node_death_info=died).SerializeToString()
        stream, prefixed = 2 * number + 1, b"\0" + len(message).to_bytes(4, "big") + message  # not compressed
        frames.append(http2_frame(HEADERS_FRAME, END_HEADERS, stream, block))
        frames.append(http2_frame(DATA_FRAME, END_STREAM, stream, prefixed))
    return HTTP2_PREFACE + b"".join(frames)


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def hpack_string(text: str) -> bytes:
    """Return a header's name or value: its length, an integer with a prefix of 7 bits (RFC 7541, 5.1), and the text."""
    data = text.encode("ascii")
    if len(data) < 127:
        return bytes([len(data)]) + data
    length, rest = bytearray([127]), len(data) - 127
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + data


def option(args: list[str], name: str) -> str | None:
    """Return the value of an option in the arguments of `ray start`; None without it."""
    return next((value for key, equals, value in (arg.partition("=") for arg in args) if key == name and equals), None)


def client_arguments(command: dict[str, Any]) -> list[str]:
    """Return the arguments that move the head's Ray client server from port 10001 into the leased block."""
    from ray.scripts import scripts

    if hasattr(scripts, "get_ray_client_dependency_error"):
        installed = scripts.get_ray_client_dependency_error() is None
    else:  # Ray 2.46
        installed = getattr(scripts, "check_ray_client_dependencies_installed", lambda: False)()
    return [f"--ray-client-server-port={command['client_port']}"] if command["gcs"] and installed else []


def storage_arguments(directory: str | None) -> list[str]:
    """Return the arguments that let the GCS store its state in the directory; none if it cannot, or does so elsewhere.

    A setting of the cluster, not of the environment, which tasks inherit: a cluster that one of them starts would use
    the same directory.
    """
    if directory is None or "RAY_gcs_storage" in os.environ or "RAY_REDIS_ADDRESS" in os.environ:
        return []
    if not stores_in_directory():
        return []
    config = {"gcs_storage": "rocksdb", "gcs_storage_path": directory}
    return [f"--system-config={json.dumps(config)}"]


def stores_in_directory() -> bool:
    """Return whether the GCS of this Ray can store its state in a directory: then its program has that setting."""
    from ray._private import services

    try:
        with (
            open(services.GCS_SERVER_EXECUTABLE, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program,
        ):
            return program.find(b"RAY_gcs_storage_path") != -1
    except (AttributeError, OSError, ValueError):
        return False


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def known_labels(version: str, args: list[str]) -> list[str]:
    """Return the arguments without the GPU domain if this release of Ray has no use for it."""
    if release(version) >= GPU_DOMAIN_SINCE:
        return args
    kept = []
    for arg in args:
        name, equals, value = arg.partition("=")
        if name == "--labels":
            value = ",".join(pair for pair in value.split(",") if not pair.startswith(GPU_DOMAIN_LABEL + "="))
        kept.append(name + equals + value)
    return kept


def unknown_option(version: str, args: list[str], start: Any) -> str | None:
    """Return why `ray start` would refuse an argument: the command `start` of this release has no such option."""
    known = {option for param in getattr(start, "params", []) for option in [*param.opts, *param.secondary_opts]}
    unknown = [name for name in (arg.partition("=")[0] for arg in args) if known and name not in known]
    return f"`ray start` of Ray {version} has no option {unknown[0]} (see --ray-start-arg)" if unknown else None


def refusal_reason(version: str, args: list[str]) -> str | None:
    """Return why this Ray cannot start with these arguments, for cases where Ray itself would hang or fail late."""
    ipv6 = [arg.partition("=")[2] for arg in args if arg.startswith("--node-ip-address=") and ":" in arg]
    if ipv6 and release(version) < IPV6_SINCE:
        since = ".".join(map(str, IPV6_SINCE))
        return f"Ray {version} cannot use the IPv6 address {ipv6[0]}: it needs Ray {since}, or --interface with IPv4"
    if "--include-dashboard=true" in args:
        try:
            import ray.dashboard.optional_deps  # noqa: F401
        except ImportError as error:
            return f"the dashboard needs the packages of ray[default]: {error}"
    return None


def exit_code(pid: int) -> int | None:
    """Return the child's exit code; None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def accepts_connections(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1.0).close()
        return True
    except OSError:
        return False


def join_address(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def alive_nodes(client: Any) -> list[int] | None:
    """Return the node indices of the nodes that Ray lists as alive; None if the GCS does not answer."""
    try:
        infos = client.get_all_node_info().values()
    except Exception as error:  # the exception classes differ between releases of Ray
        print(f"muster: Ray's node table could not be read: {error}", file=sys.stderr, flush=True)
        return None
    return sorted(int(info.labels[NODE_LABEL]) for info in infos if info.state == 0 and NODE_LABEL in info.labels)


def connect(address: tuple[str, int]) -> Any:
    """Return a client of the GCS; None if it does not answer."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined, unused-ignore]

    try:
        return GcsClient(address=join_address(address)) if accepts_connections(address) else None
    except Exception as error:  # as in `alive_nodes`
        print(f"muster: Ray's control service does not answer: {error}", file=sys.stderr, flush=True)
        return None


def watch_cluster(address: tuple[str, int], child: int, nodes: int, stored: bool) -> None:
    """Report the exit of `ray start` and the node table until both are complete, or the agent closes stdin."""
    client: Any = None
    seen: list[int] = []
    code: int | None = None
    changed = time.monotonic()
    while code is None or len(seen) < nodes:
        if code is None:
            code = exit_code(child)
            if code is not None:
                report("started", code=code, stored=stored)
            if code:
                return
        client = client or connect(address)
        alive = seen if client is None else alive_nodes(client)
        if alive is None:
            client = None  # it did not answer: reconnect
        elif alive != seen:
            seen, changed = alive, time.monotonic()
            report("alive", ranks=alive)
        is_stable = code is not None and time.monotonic() > changed + LATE_NODES_S
        if select.select([0], [], [], LATE_NODE_POLL_S if is_stable else NODE_TABLE_POLL_S)[0]:
            return


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if entry]  # a ray.py in the user's directory is not Ray
    try:
        import ray
        import ray._raylet
        from ray.scripts import scripts
    except ImportError as error:
        report("no_ray", error=str(error))
        return
    report("warm", ray=ray.__version__, python=sys.version.split()[0], time=time.time())
    line = sys.stdin.readline()
    if not line:
        return
    command = json.loads(line)
    args = known_labels(ray.__version__, command["start"])
    refused = refusal_reason(ray.__version__, args) or unknown_option(ray.__version__, args, scripts.start)
    if refused is not None:
        report("refused", error=refused)
        return
    storage = storage_arguments(command["storage"])
    child = fork_ray_start(args + client_arguments(command) + storage, command["nodes"], command["replaces"])
    if command["gcs"]:
        watch_cluster((command["gcs"][0], command["gcs"][1]), child, command["nodes"], bool(storage))
    else:
        report("started", code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    REPORTS = os.dup(1)  # Ray's output goes to the node's log, never between the reports
    os.dup2(2, 1)
    main()
