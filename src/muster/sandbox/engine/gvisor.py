"""gVisor sandboxes: the bundle and the command with which `runsc` runs one worker in a kernel of its own.

Each worker is the first process of a separate sandbox. It gets its channel to the engine as stdin, and everything else
(the control socket, the sockets and pipes of executions, files in memory) as descriptors over it, which gVisor imports.

    <engine>/gvisor/root     the root filesystem, read-only and the same for all workers: mount points and a few files
    <engine>/gvisor/shown    directories that lead to read-only paths below the scratch
    <worker>/g               config.json, and the state of runsc: removed with the worker
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.sandbox.jail.gvisor import WORKER_CAPABILITIES
from muster.sandbox.jail.rootfs import ETC, HOME, SCRATCH, SYSTEM, TEMPORARY, private_scratch, shown_in

OVERHEAD_MB = 256  # of runsc, its file server, its kernel, and the interpreter, beyond the limit of programs
OVERHEAD_PROCESSES = 256  # threads of runsc and its kernel; besides
HOST_THREADS_OF_PROCESS = 3  # at most, of a program's process
MAX_STATE_PATH = 90  # characters: runsc makes a socket there, and elsewhere if this name is too long for one
SANDBOX_NAME = "w"
NAMESPACES = ("pid", "mount", "ipc", "uts", "network")
# Joins the groups named before `--`, so that everything that runsc starts belongs to them, and becomes the rest.
ENTER_CGROUPS = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class SandboxRoot:
    """The directories that all sandboxes of this engine show: `root`, and mounts of the host's paths."""

    root: str
    read_only: tuple[str, ...]
    shown: str


def find_runsc() -> str | None:
    """Return the path of runsc, from PATH."""
    return shutil.which("runsc")


def make_root(directory: str, read_only: Iterable[str]) -> SandboxRoot:
    """Create the root filesystem below the engine's directory, unless it is there."""
    made = SandboxRoot(f"{directory}/gvisor/root", tuple(read_only), f"{directory}/gvisor/shown")
    if os.path.isdir(made.root):
        return made
    new = made.root
    for path in ("/proc", "/sys", "/dev", "/etc", *SCRATCH, "/mnt"):
        os.makedirs(new + path)
    for path in SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), new + path)
        elif os.path.isdir(path):
            os.makedirs(new + path)
    for name in ETC:
        _copy(f"/etc/{name}", f"{new}/etc/{name}")
    for name, text in (("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"), ("nsswitch.conf", "hosts: files\n")):
        _write(f"{new}/etc/{name}", text)
    for path in made.read_only:
        _make_mount_point(path, new + path)
        if _is_in_scratch(path):
            _make_mount_point(path, made.shown + path)
    return made


def write_bundle(
    root: SandboxRoot, plan: Mapping[str, Any], argv: Sequence[str], environment: Mapping[str, str]
) -> str:
    """Write the configuration of a worker's sandbox; return its directory, which is also that of runsc's state."""
    directory = f"{plan['directory']}/g"
    os.mkdir(directory, 0o700)
    capabilities = [f"CAP_{name}" for name in WORKER_CAPABILITIES]
    config = {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
        },
        "root": {"path": root.root, "readonly": True},
        "hostname": "sandbox",
        "mounts": mounts(root, plan["workspace"], plan["scratch_mb"], plan["user"]),
        "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES]},
    }
    _write(f"{directory}/config.json", json.dumps(config))
    return directory


def mounts(root: SandboxRoot, workspace: str | None, scratch_mb: int, user: int) -> list[dict[str, Any]]:
    """Return the mounts of a sandbox, in their order."""
    found = [_mount("/proc", "proc", "proc")]
    found += [_bind(path, path) for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    size = f"size={scratch_mb}m"
    for path in (HOME, TEMPORARY, *private_scratch(root.read_only)):
        if workspace is not None and path in (HOME, TEMPORARY):
            found.append(_bind(f"{workspace}/{'home' if path == HOME else 'tmp'}", path, "rw"))
        else:
            found.append(_mount(path, "tmpfs", "tmpfs", size, "mode=700", f"uid={user}", f"gid={user}"))
    for scratch in SCRATCH:
        for name in shown_in(scratch, root.read_only):
            if f"{scratch}/{name}" not in root.read_only:
                found.append(_bind(f"{root.shown}{scratch}/{name}", f"{scratch}/{name}"))
    return [*found, *(_bind(path, path) for path in root.read_only)]


def command(runsc: str, directory: str, plan: Mapping[str, Any], is_root: bool) -> list[str]:
    """Return the command of a worker's sandbox, which ends when runsc does."""
    # The files that are shown do not change. Those of a workspace do: other workers have it, too.
    access = "shared" if plan["workspace"] is not None else "exclusive"
    options = ["--root", directory, "--network=none", "--platform=systrap", "--overlay2=none", "--ignore-cgroups"]
    options += [f"--file-access-mounts={access}", *([] if is_root else ["--rootless"])]
    enter = [f"{group}/cgroup.procs" for group in plan["cgroups"]]
    run = [runsc, *options, "run", "--bundle", directory, SANDBOX_NAME]
    return ["/bin/sh", "-c", ENTER_CGROUPS, "sh", *enter, "--", *run]


def why_unusable(directory: str, network: bool) -> str | None:
    """Return why no sandbox can be started with these settings; None if it has to be tried."""
    if find_runsc() is None:
        return "there is no runsc (gVisor) in PATH"
    if network:
        return "programs have no network there: leave out --network, or take another level"
    if len(directory) > MAX_STATE_PATH - 30:  # that of a worker is below it
        return f"runsc's sockets need a shorter path than {directory}: give another --scratch-dir"
    return None


def _mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": ["nosuid", "nodev", *options]}


def _bind(source: str, destination: str, access: str = "ro") -> dict[str, Any]:
    return _mount(destination, "bind", source, "rbind", access)


def _is_in_scratch(path: str) -> bool:
    return any(path.startswith(scratch + "/") for scratch in SCRATCH)


def _make_mount_point(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, "")


def _copy(source: str, target: str) -> None:
    """Copy what every user may read of a file or directory of /etc; links stay as they are."""
    if os.path.islink(source):
        source = os.path.realpath(source)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, target, symlinks=True, ignore=_unreadable)
        elif _is_public(source):
            shutil.copyfile(source, target)


def _unreadable(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if not _is_public(f"{directory}/{name}")]


def _is_public(path: str) -> bool:
    """Return whether every user may read the file; sockets and pipes are none."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    is_known = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
    return is_known and bool(mode & stat.S_IROTH)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
