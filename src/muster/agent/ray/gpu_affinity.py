"""The file that maps each GPU of this node to the CPUs near it, for NeMo-RL's NUMA binding of workers.

A line is `GPU:CPULIST`, with the number of the GPU in nvidia-smi. The NUMA node of a GPU comes from the column "NUMA
Affinity" of `nvidia-smi topo -m` (the first one if there are several), its CPUs from sysfs. Where either is unknown,
the column "CPU Affinity" is used. NeMo-RL ignores a missing file and binds nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping

from muster.agent.ray.labels import NVIDIA_SMI_TIMEOUT_S

FILE_MODE = 0o644
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")  # nvidia-smi underlines the header
_GPU = re.compile(r"GPU(\d+)")
_CPULIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def affinity_lines(listing: str, cpus_of_numa_node: Callable[[int], str | None]) -> list[str]:
    """Return the file's lines, from the output of `nvidia-smi topo -m`; GPUs with unknown CPUs have none."""
    header: list[str] = []
    lines: list[str] = []
    for row in ([cell.strip() for cell in _ESCAPE.sub("", line).split("\t")] for line in listing.splitlines()):
        if "CPU Affinity" in row:
            header = row
        elif header and (gpu := _GPU.fullmatch(row[0])):
            cells = dict(zip(header, row))
            numa = re.match(r"\d+", cells.get("NUMA Affinity", ""))
            cpus = (cpus_of_numa_node(int(numa[0])) if numa else None) or cells["CPU Affinity"]
            if _CPULIST.fullmatch(cpus):
                lines.append(f"{gpu[1]}:{cpus}")
    return lines


def cpus_of_numa_node(number: int, root: str = "/sys/devices/system/node") -> str | None:
    """Return the CPUs of a NUMA node as sysfs lists them: "0-63,128-191"; None if sysfs does not have it."""
    try:
        with open(os.path.join(root, f"node{number}", "cpulist"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


class AffinityFile:
    """The file of one node. It exists while Ray runs there."""

    def __init__(self, path: str | None, env: Mapping[str, str]) -> None:
        """`path` is None for a node without the file; `env` has the PATH of nvidia-smi."""
        self._path, self._env = path, env
        self._written = False

    def write(self) -> str | None:
        """Write the file; return why that was not possible. nvidia-smi takes seconds on a node with many GPUs."""
        path, env = self._path, self._env
        if path is None:
            return None
        program = shutil.which("nvidia-smi", path=env.get("PATH"))
        if program is None:
            return f"{path} is not written: nvidia-smi is not installed"
        try:
            done = subprocess.run(
                [program, "topo", "-m"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, env=dict(env)
            )
            lines = affinity_lines(done.stdout, cpus_of_numa_node)
            if not lines:
                return (
                    f"{path} is not written: `nvidia-smi topo -m` shows no CPUs of GPUs (exit code {done.returncode})"
                )
            _replace(path, "".join(f"{line}\n" for line in lines))
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{path} is not written: {error}"
        self._written = True
        return None

    def remove(self) -> None:
        """Remove the file if this object wrote it."""
        if self._path is not None and self._written:
            with contextlib.suppress(OSError):  # another virtual node of this machine may have removed it
                os.unlink(self._path)


def _replace(path: str, text: str) -> None:
    """Write the file under a new name that another user cannot prepare, then rename it."""
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=os.path.basename(path))
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(temporary, FILE_MODE)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
