"""Build the library of a run, with which drivers import parts of Muster (LIBRARY_PACKAGES) without an installation.

It is a zip archive: on PYTHONPATH, every import of every worker would search a directory on the shared filesystem, but
each process opens an archive once. It contains bytecode, since Python cannot write it there later; a Python of another
version uses the sources. PYTHONPATH precedes installed packages, so the library defers to an installed Muster:
see library_init.py.
"""

from __future__ import annotations

import io
import zipfile

from muster.launch import library_init
from muster.launch.agent_archive import SANDBOX_PACKAGES, compile_sources, file_name, package_sources
from muster.process import source_of

LIBRARY_PACKAGES = (  # and the sandbox, if the job has one
    "placement",
    "process",
    "progress",
    "sections",
    "control_requests",
    "service_lookup",
    "ports",
    "exit_codes",
)
_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)  # pyc header: do not compare with time or hash of the source


def library_sources(sandbox: bool = False) -> dict[str, str]:
    """Return the sources by their names in the archive."""
    packages = [*LIBRARY_PACKAGES, *SANDBOX_PACKAGES] if sandbox else LIBRARY_PACKAGES
    modules = {"muster": (True, source_of(library_init)), **package_sources(packages)}
    return {file_name(name, package): source for name, (package, source) in modules.items()}


def build_library(python: str, sandbox: bool = False) -> bytes:
    """Return the archive, with bytecode for `python` if that interpreter runs on this host."""
    sources = library_sources(sandbox)
    magic, codes = compile_sources(sources, python)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sources.items():
            archive.writestr(name, source)
            if codes[name]:
                archive.writestr(f"{name}c", magic + _UNCHECKED + codes[name])
    return buffer.getvalue()
