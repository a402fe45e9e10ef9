"""An interpreter as it comes from a build with an old C library (conda's, many of uv's): `os` lacks newer functions.

It is this one with a copy of the standard library's directory in which three modules differ. `encodings` is imported by
every interpreter before `os` is, whatever its options; there the functions are taken away. `signal` lacks its own, and
`ctypes` does not find them in the C library, as on a node whose own is old, too.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

OUT_OF_OS = """
import posix, time
for name in %r:
    posix.__dict__.pop(name, None)
time.__dict__.pop("CLOCK_BOOTTIME", None)
del posix, time, name
"""
OF_OS = ["memfd_create", "pidfd_open", "copy_file_range", "P_PIDFD", *(n for n in dir(os) if n.startswith("MFD_"))]
OUT_OF_SIGNAL = """
globals().pop("pidfd_send_signal", None)
"""
NOT_IN_LIBRARY = """
def _lacking(self, name, found=CDLL.__getattr__):
    if name in ("memfd_create", "pidfd_open", "pidfd_send_signal"):
        raise AttributeError(name)
    return found(self, name)
CDLL.__getattr__ = _lacking
"""
LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "lib2to3", "ensurepip", "config-*")


def build_old(directory: Path) -> str:
    """The path of the interpreter's program. It finds no packages but those on PYTHONPATH."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    real = Path(os.__file__).parent
    library, program = directory / "lib" / version, directory / "bin" / "python"
    program.parent.mkdir(parents=True)
    shutil.copytree(real, library, ignore=shutil.ignore_patterns(*LEFT_OUT), copy_function=_link)
    for shared in Path(sys.base_prefix, "lib").glob("libpython*"):
        (directory / "lib" / shared.name).symlink_to(shared)
    for module, before, after in (
        ("encodings/__init__.py", OUT_OF_OS % OF_OS, ""),
        ("ctypes/__init__.py", "", NOT_IN_LIBRARY),
        ("signal.py", "", OUT_OF_SIGNAL),
    ):
        file = library / module
        text = before + file.read_text(encoding="utf-8") + after
        file.unlink()  # it may be a link to the real one
        file.write_text(text, encoding="utf-8")
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()
    shutil.copy(os.path.realpath(sys.executable), program)
    return str(program)


def _link(source: str, target: str) -> None:
    """A copy costs time: not where both are on one filesystem. No symbolic link, which a sandbox would not follow."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
