"""Collect the facts about one node as one JSON object, without evaluating them."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from typing import Any

from muster.doctor.node.shared_fs_probe import probe_shared_filesystem
from muster.doctor.node.wire import report_lines
from muster.ports.blocks import LOCAL_BLOCK_SIZE, smallest_size, take_block
from muster.ports.ranges import ephemeral_range
from muster.rundir.filesystem_type import probe_filesystem_type

CONTAINER_PROGRAMS = ("apptainer", "singularity", "ch-run", "enroot")
PYTHON_TIMEOUT_S = 180.0
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000

# Run by the job's interpreter in the same way as the agent: with its site packages, in the job's directory.
_PYTHON_PROBE = """\
import json, platform, sys, time
facts = {"version": platform.python_version(), "executable": sys.executable}
if sys.argv[1] == "ray":
    began = time.monotonic()
    try:
        import ray
        facts["ray"] = {"version": ray.__version__, "path": ray.__file__, "import_s": time.monotonic() - began}
    except BaseException as error:
        facts["ray"] = {"error": type(error).__name__ + ": " + str(error)}
print("\\n" + json.dumps(facts))
"""


def probe_python(config: dict[str, Any]) -> dict[str, Any]:
    """Run the job's interpreter, and import Ray in it."""
    argv = [config["python"], "-c", _PYTHON_PROBE, "ray" if config["ray"] else "-"]
    env = {**os.environ, **_job_environment(config)}
    try:
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PYTHON_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"it did not answer within {PYTHON_TIMEOUT_S:g} s"}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    try:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return facts
    except (IndexError, ValueError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {"error": f"it ended with code {done.returncode}" + (f": {lines[-1][:200]}" if lines else "")}


def _job_environment(config: dict[str, Any]) -> dict[str, str]:
    """Return the values of --env from a file, because they may be secrets; empty if it is not visible here."""
    try:
        with open(os.path.join(config["directory"], "env.json"), encoding="utf-8") as file:
            values: dict[str, str] = json.load(file)
            return values
    except (OSError, ValueError, TypeError):
        return {}


def probe_ports(config: dict[str, Any]) -> dict[str, Any]:
    """Look for a free block of ports for Ray."""
    facts: dict[str, Any] = {"ephemeral": list(ephemeral_range())}
    size: int = config["block_size"]
    smallest = min(size, smallest_size(len(os.sched_getaffinity(0)), size == LOCAL_BLOCK_SIZE))
    try:
        held = take_block("doctor", size, config["port_base"], smallest)
        facts["block"] = [held.block.base, held.block.guard]
        facts["warning"] = held.warning()
        held.release()
    except OSError as error:
        facts["error"] = str(error)
    return facts


def probe_limits() -> dict[str, Any]:
    """Return soft and hard limits; null for unlimited."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    limits = {name: resource.getrlimit(kind) for name, kind in kinds.items()}
    return {name: [None if n == resource.RLIM_INFINITY else n for n in pair] for name, pair in limits.items()}


def probe_shm() -> dict[str, Any]:
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"size": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def probe_user_namespaces() -> dict[str, Any]:
    """Create a user namespace in a child, and use rights in it, which some systems refuse separately."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.write(writer, _enter_user_namespace().encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as file:
        problem = file.read()
    os.waitpid(pid, 0)
    return {"works": True} if problem == "ok" else {"works": False, "error": problem or "the child process died"}


def _enter_user_namespace() -> str:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        user = os.getuid()
        if libc.unshare(CLONE_NEWUSER):
            return "unshare: " + os.strerror(ctypes.get_errno())
        with open("/proc/self/uid_map", "w", encoding="ascii") as file:
            file.write(f"0 {user} 1")
        if libc.unshare(CLONE_NEWNS):
            return "a mount namespace inside: " + os.strerror(ctypes.get_errno())
    except Exception as error:
        return str(error)
    return "ok"


def facts(config: dict[str, Any], node_index: int, host: str) -> dict[str, Any]:
    """Return all facts about this node; the shared filesystem comes first because other nodes wait for this one."""
    directory = config["directory"]
    return {
        "host": host,
        "rank": node_index,
        "nodelist": os.environ.get("SLURM_JOB_NODELIST", ""),
        "system": platform.platform(),
        "setup_code": int(os.environ.get("MUSTER_DOCTOR_SETUP", "0")),
        "directory": probe_shared_filesystem(config, node_index) if directory else None,
        "filesystem": probe_filesystem_type(config["runs_dir"]),
        "workdir": os.path.isdir(config["workdir"]),
        "python": probe_python(config) if config["python"] else None,
        "ports": probe_ports(config),
        "limits": probe_limits(),
        "shm": probe_shm(),
        "user_namespaces": probe_user_namespaces(),
        "programs": {name: shutil.which(name) for name in CONTAINER_PROGRAMS},
        "time": time.time(),
    }


def main(arguments: list[str]) -> int:
    config = json.loads(arguments[0])
    node_index = int(os.environ["MUSTER_RANK"])
    for line in report_lines(node_index, facts(config, node_index, os.environ["MUSTER_HOST"])):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return 0
