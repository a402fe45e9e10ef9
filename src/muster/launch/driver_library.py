"""The library that travels with a run: `muster.placement`, `muster.process` and `muster.beat`, without an installation.

It is a zip archive, not a directory: on PYTHONPATH a directory of a shared filesystem is asked about at every import of
every worker, while an archive is opened once by each process. Bytecode is inside, since nobody can write it there
later; where it is another Python's, the sources beside it are used.

Being on PYTHONPATH it comes before whatever is installed, and so gives way by itself: see stand_in.py.
"""

from __future__ import annotations

import io
import zipfile

from muster.launch import library_init
from muster.launch.agent_archive import SANDBOX_PACKAGE, compiled, package_sources
from muster.process import source_of

LIBRARY_PACKAGES = (
    "placement",
    "process",
    "progress",
    "ports",
    "exit_codes",
)  # and the sandbox, where it is one of the services
_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)  # of a pyc's header: no time and no hash to compare with the source


def library_sources(sandbox: bool = False) -> dict[str, str]:
    """By their names in the archive."""
    packages = [*LIBRARY_PACKAGES, SANDBOX_PACKAGE] if sandbox else LIBRARY_PACKAGES
    modules = {"muster": (True, source_of(library_init)), **package_sources(packages)}
    return {_file_name(name, package): source for name, (package, source) in modules.items()}


def build_library(python: str, sandbox: bool = False) -> bytes:
    """The archive, with bytecode for `python` if that can be run here."""
    sources = library_sources(sandbox)
    magic, codes = compiled(sources, python)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sources.items():
            archive.writestr(name, source)
            if codes[name]:
                archive.writestr(f"{name}c", magic + _UNCHECKED + codes[name])
    return buffer.getvalue()


def _file_name(module: str, package: bool) -> str:
    return module.replace(".", "/") + ("/__init__.py" if package else ".py")
