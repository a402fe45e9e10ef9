"""A root filesystem for containers, made of this machine's own files: sh, a few tools and Python; no Muster, no Slurm.

It holds copies, not links: a container may never change what it was made from.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON_HOME = "/opt/python"
PYTHON = "/usr/bin/python3"
MARK = "/etc/this-is-the-image"
TOOLS = ("sh", "cat", "ls", "sleep", "id", "touch")
_USUAL = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6")
_LEFT_OUT = ("site-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "*.a", "_tkinter*.so")


def build_image(root: Path, mount_points: tuple[str, ...] = ()) -> Path:
    """Make the filesystem below `root`; the mount points are directories that Charliecloud cannot make itself."""
    for name in ("dev", "proc", "sys", "tmp", "etc", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "root"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("hosts", "resolv.conf", "passwd", "group"):
        (root / "etc" / name).touch()
    (root / MARK.lstrip("/")).touch()
    programs = [Path(found) for found in map(shutil.which, TOOLS) if found]
    for program in programs:
        shutil.copy(program, root / "usr/bin" / program.name)
    modules = _copy_python(root / PYTHON_HOME.lstrip("/"))
    (root / PYTHON.lstrip("/")).symlink_to(f"{PYTHON_HOME}/bin/python3")
    _copy_libraries(root, [*programs, Path(sys.executable).resolve(), *modules])
    for point in mount_points:
        (root / point.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return root


def _copy_python(home: Path) -> list[Path]:
    """This interpreter's standard library and itself; returns its compiled modules, for the libraries they need."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = Path(sys.base_prefix) / "lib" / version
    shutil.copytree(library, home / "lib" / version, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    (home / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), home / "bin" / "python3")
    return list((home / "lib" / version / "lib-dynload").glob("*.so"))


def _copy_libraries(root: Path, programs: list[Path]) -> None:
    """What the programs are linked with, and what any image with Ray has; at the same places as here."""
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    libraries = {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}
    (home,) = {library.parent for library in libraries if library.name == "libc.so.6"}
    libraries |= {home / name for name in _USUAL if (home / name).exists()}
    for library in libraries:
        target = root / str(library).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.resolve(), target)
