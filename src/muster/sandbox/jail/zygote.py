"""The zygote: an interpreter that has imported the modules programs are likely to need. It forks workers on request.

from the engine                                         to the engine
(first packet) the sources of this package, the config  ready    version, imported modules; or: failed, why
a confinement plan + a worker's control socket          (the worker reports over that socket)
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import linecache
import os
import platform
import signal
import site
import socket
import sys
from typing import Any

from muster.sandbox.jail import kernel, wire, worker
from muster.sandbox.jail.confine import ConfinementPlan
from muster.sandbox.jail.rootfs import SCRATCH, SYSTEM

STANDARD_MODULES = (
    "collections",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "random",
    "re",
    "statistics",
    "string",
    "typing",
    "unicodedata",
    "bisect",
    "copy",
    "dataclasses",
    "operator",
    "traceback",
    "subprocess",
    "tempfile",
    "ast",
    "threading",
)


def main(channel: socket.socket, config: dict[str, Any]) -> None:
    """Import modules, report, and fork workers until the engine is gone."""
    try:
        imported = preload(config["preload"])
        _refuse_threads(imported)
    except Exception as error:
        wire.send(channel, {"event": "failed", "why": str(error)})
        return
    forget_muster()
    linecache.clearcache()  # no traceback of a program's <string> may show our source
    gc.collect()
    gc.freeze()  # else a program's collections would touch, and so copy, all of this
    kernel.use_huge_pages()
    read_only = read_only_paths(config["read_only"])
    wire.send(
        channel,
        {
            "event": "ready",
            "python": platform.python_version(),
            "preloaded": imported,
            "read_only": read_only,
            "ipython": "IPython" in sys.modules,
            "executable": sys.executable,
        },
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers report to the engine, so they need no wait here
    while True:
        message, fds = wire.receive(channel)
        if message is None:
            return
        # In a sandbox of gVisor this process becomes the worker: its first process must be ours.
        if config.get("becomes_worker") or os.fork() == 0:
            channel.close()
            worker.main(socket.socket(fileno=fds[0]), ConfinementPlan.from_json({"read_only": read_only, **message}))
        for fd in fds:
            os.close(fd)


def preload(names: list[str]) -> list[str]:
    """Import the modules and return their names; one whose name ends with `?` may be missing."""
    gc.disable()
    for name in STANDARD_MODULES:
        importlib.import_module(name)
    imported = []
    for name in names:
        wanted = name.rstrip("?")
        if name.endswith("?") and importlib.util.find_spec(wanted) is None:
            continue
        try:
            importlib.import_module(wanted)
        except Exception as error:
            raise ImportError(f"cannot preload {wanted}: {error}") from None
        imported.append(wanted)
    gc.enable()
    return imported


def _refuse_threads(imported: list[str]) -> None:
    count = len(os.listdir("/proc/self/task"))
    if count > 1:
        raise RuntimeError(
            f"preloading {', '.join(imported)} started {count - 1} threads, which forks would lack: preload less"
        )


def forget_muster() -> None:
    """Remove our modules from sys.modules: programs may import another `muster`. References to them stay valid."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "muster"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "of_sandbox", False)]


def read_only_paths(more: list[str]) -> list[str]:
    """Return the paths of this interpreter's files and the requested ones, without those below SYSTEM.

    A path that contains a scratch directory, such as /tmp in a module search path, would hide it and is left out.
    """
    wanted = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *site.getsitepackages(), *more]
    wanted += [os.path.realpath(path) for path in wanted]
    found: list[str] = []
    for path in sorted({os.path.abspath(path) for path in wanted if path and os.path.exists(path)}):
        if any(scratch == path or scratch.startswith(path.rstrip("/") + "/") for scratch in SCRATCH):
            continue
        if not any(path == parent or path.startswith(parent + "/") for parent in (*SYSTEM, *found)):
            found.append(path)
    return found
