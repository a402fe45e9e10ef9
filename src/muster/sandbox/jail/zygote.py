"""The zygote: an interpreter with everything imported that programs are likely to want. It forks workers, and waits.

from the server                                     to the server
(first packet) the sources of this room, the config  ready    version, what was imported, or: failed, why
worker   a plan + its control socket                 (the worker itself reports, over that socket)
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

STANDARD = (
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
    """Import, report, fork on request; ends with the server."""
    try:
        imported = preload(config["preload"])
        _refuse_threads(imported)
    except Exception as error:
        wire.send(channel, {"event": "failed", "why": str(error)})
        return
    forget_ourselves()
    linecache.clearcache()  # our own source is nobody's <string>
    gc.collect()
    gc.freeze()  # so that a program's own collections do not touch, and so copy, all of this
    kernel.use_huge_pages()
    places = read_only_places(config["read_only"])
    wire.send(
        channel,
        {
            "event": "ready",
            "python": platform.python_version(),
            "preloaded": imported,
            "read_only": places,
            "ipython": "IPython" in sys.modules,
            "executable": sys.executable,
        },
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers here: they report to the server
    while True:
        message, fds = wire.receive(channel)
        if message is None:
            return
        if os.fork() == 0:
            channel.close()
            worker.main(socket.socket(fileno=fds[0]), ConfinementPlan.from_json({"read_only": places, **message}))
        for fd in fds:
            os.close(fd)


def preload(names: list[str]) -> list[str]:
    """Import them; a name that ends with `?` may be missing."""
    gc.disable()
    for name in STANDARD:
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
            f"preloading {', '.join(imported)} started {count - 1} threads: a fork would be without them, and broken"
        )


def forget_ourselves() -> None:
    """Programs may have a `muster` of their own. What is imported already works on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "muster"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "of_sandbox", False)]


def read_only_places(more: list[str]) -> list[str]:
    """Where this interpreter's files are, and what else was asked for; without what the system's places have anyway.

    A path that holds a place of the scratch, as /tmp itself in a module search path, would hide it: it is left out.
    """
    wanted = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *site.getsitepackages(), *more]
    wanted += [os.path.realpath(path) for path in wanted]
    found: list[str] = []
    for path in sorted({os.path.abspath(path) for path in wanted if path and os.path.exists(path)}):
        if any(place == path or place.startswith(path.rstrip("/") + "/") for place in SCRATCH):
            continue
        if not any(path == place or path.startswith(place + "/") for place in (*SYSTEM, *found)):
            found.append(path)
    return found
