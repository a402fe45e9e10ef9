"""The agent as one file: read once per node, imported from memory, with bytecode inside.

A plain zipapp of thirty modules is opened more than sixty times and costs a third of a second on a slow filesystem.
This one holds two members: a bootstrap, and all modules in one blob that the bootstrap reads at once. Where the node's
Python is not of the version that made the bytecode, the sources (in the same blob) are compiled instead.
"""

from __future__ import annotations

import io
import marshal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from muster.exit_codes import OLD_PYTHON

AGENT_PACKAGES = (
    "agent",
    "lifecycle",
    "election",
    "rundir",
    "process",
    "slurm",
    "ports",
    "exit_codes",
    "errors",
)
SANDBOX_PACKAGE = "sandbox"  # half as large again: it travels with a run that has one among its services

BOOTSTRAP = """\
import marshal, sys
if sys.version_info < (3, 9):
    sys.stderr.write("muster: the agent needs Python 3.9 or newer, this is " + sys.version.split()[0] + "\\n")
    sys.exit(@OLD_PYTHON@)
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

ARCHIVE = sys.argv[0]
MODULES = marshal.loads(__loader__.get_data(ARCHIVE + "/modules"))

class FromMemory:
    def find_spec(self, name, path=None, target=None):
        if name not in MODULES:
            return None
        package = MODULES[name][0]
        spec = ModuleSpec(name, self, origin=ARCHIVE + "/" + name, is_package=package)
        spec.has_location = False
        return spec
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        package, source, magic, code = MODULES[module.__name__]
        module.__file__ = ARCHIVE + "/" + module.__name__
        program = marshal.loads(code) if magic == MAGIC_NUMBER else compile(source, module.__file__, "exec")
        exec(program, module.__dict__)
    def get_source(self, name):
        return MODULES[name][1]

sys.meta_path.insert(0, FromMemory())
from muster.agent.main import main
sys.exit(main(sys.argv[1:]))
"""

# Run by the node's own interpreter, where the submitting host has it, so that the bytecode fits.
_COMPILE = """\
import marshal, sys
from _frozen_importlib_external import MAGIC_NUMBER
names = marshal.load(sys.stdin.buffer)
codes = {name: marshal.dumps(compile(source, name, "exec")) for name, source in names.items()}
sys.stdout.buffer.write(marshal.dumps((MAGIC_NUMBER, codes), 2))
"""


def agent_sources(sandbox: bool = False) -> dict[str, tuple[bool, str]]:
    """Module name -> (is a package, source) of everything the agent may import. `muster` itself stays empty there."""
    return {"muster": (True, ""), **package_sources([*AGENT_PACKAGES, SANDBOX_PACKAGE] if sandbox else AGENT_PACKAGES)}


def package_sources(packages: Sequence[str]) -> dict[str, tuple[bool, str]]:
    """Module name -> (is a package, source) of all modules of these packages; one may be a single module."""
    root = Path(__file__).parent.parent
    modules = {}
    for name in packages:
        single = root / f"{name}.py"
        for path in [single] if single.exists() else sorted((root / name).rglob("*.py")):
            parts = ("muster", *path.relative_to(root).with_suffix("").parts)
            package = parts[-1] == "__init__"
            modules[".".join(parts[:-1] if package else parts)] = (package, path.read_text(encoding="utf-8"))
    return modules


def build_archive(python: str, sandbox: bool = False) -> bytes:
    """The contents of agent.pyz, with bytecode for `python` if that can be run here."""
    sources = agent_sources(sandbox)
    magic, codes = compiled({f"agent/{name}": source for name, (_, source) in sources.items()}, python)
    blob = {name: (package, source, magic, codes[f"agent/{name}"]) for name, (package, source) in sources.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("__main__.py", BOOTSTRAP.replace("@OLD_PYTHON@", str(OLD_PYTHON)))
        archive.writestr("modules", marshal.dumps(blob, 2))
    return buffer.getvalue()


def compiled(sources: dict[str, str], python: str) -> tuple[bytes, dict[str, bytes]]:
    """A magic number, and bytecode of that version by the sources' file names.

    It is that of `python` if that can be run here, else this interpreter's; nothing where not even that can.
    """
    for interpreter in (python, sys.executable):
        try:
            done = subprocess.run(
                [interpreter, "-I", "-S", "-c", _COMPILE],
                input=marshal.dumps(sources, 2),
                capture_output=True,
                timeout=30,
                check=True,
            )
            magic, codes = marshal.loads(done.stdout)
            return magic, codes
        except (OSError, subprocess.SubprocessError, ValueError, EOFError):
            continue  # not to be had on this host: the nodes compile from source
    return b"", dict.fromkeys(sources, b"")
