"""Build the agent as one archive, which each node reads once and imports from memory.

A plain zipapp of thirty modules is opened more than sixty times, which takes a third of a second on a slow filesystem.
This one has two members: a bootstrap, and all modules in one blob that the bootstrap reads at once. If the bytecode in
it is not for the node's version of Python, the sources in the same blob are compiled.
"""

from __future__ import annotations

import io
import marshal
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

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
    "control_requests",
    "sections",
)
SANDBOX_PACKAGES = ("sandbox", "prometheus")  # half as large again: only for runs with a sandbox service
ENDPOINT_PACKAGES = ("endpoint", "sandbox", "prometheus")  # the proxy uses the sandbox's HTTP
_PACKAGE = Path(__file__).parent.parent  # muster

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

# Run by the node's interpreter, if the submitting host has it, so that the bytecode has the right version.
_COMPILER = """\
import marshal, sys
from _frozen_importlib_external import MAGIC_NUMBER
names = marshal.load(sys.stdin.buffer)
codes = {name: marshal.dumps(compile(source, name, "exec")) for name, source in names.items()}
sys.stdout.buffer.write(marshal.dumps((MAGIC_NUMBER, codes), 2))
"""


def agent_sources(sandbox: bool = False, endpoint: bool = False) -> dict[str, tuple[bool, str]]:
    """Return module name -> (is a package, source) of all modules of the agent; `muster` itself is empty."""
    more = [*(SANDBOX_PACKAGES if sandbox else ()), *(ENDPOINT_PACKAGES if endpoint else ())]
    return {"muster": (True, ""), **package_sources([*AGENT_PACKAGES, *more])}


def package_sources(packages: Sequence[str]) -> dict[str, tuple[bool, str]]:
    """Return module name -> (is a package, source) of all modules of these packages, or of single modules."""
    modules = {}
    for name in packages:
        single = _PACKAGE / f"{name}.py"
        for path in [single] if single.exists() else sorted((_PACKAGE / name).rglob("*.py")):
            parts = ("muster", *path.relative_to(_PACKAGE).with_suffix("").parts)
            package = parts[-1] == "__init__"
            modules[".".join(parts[:-1] if package else parts)] = (package, path.read_text(encoding="utf-8"))
    return modules


def build_archive(python: str, sandbox: bool = False, endpoint: bool = False) -> bytes:
    """Return the contents of agent.pyz, with bytecode for `python` if that interpreter runs on this host."""
    sources = agent_sources(sandbox, endpoint)
    files = {name: file_name(name, package) for name, (package, _) in sources.items()}
    magic, codes = compile_sources({files[name]: source for name, (_, source) in sources.items()}, python)
    blob = {name: (package, source, magic, codes[files[name]]) for name, (package, source) in sources.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("__main__.py", BOOTSTRAP.replace("@OLD_PYTHON@", str(OLD_PYTHON)))
        # Compressed to a third: it is stored with every run, and every node reads it from the shared filesystem.
        archive.writestr("modules", marshal.dumps(blob, 2), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def file_name(module: str, package: bool) -> str:
    """Return the file of a module, relative to the directory of the package `muster`."""
    return module.replace(".", "/") + ("/__init__.py" if package else ".py")


def compile_sources(sources: dict[str, str], python: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the magic number and the bytecode by the sources' file names.

    They are for `python` if that interpreter runs on this host, else for this interpreter; empty if neither works.
    """
    if _is_this_interpreter(python):
        return MAGIC_NUMBER, {name: marshal.dumps(_code(name, source)) for name, source in sources.items()}
    for interpreter in (python, sys.executable):
        try:
            done = subprocess.run(
                [interpreter, "-I", "-S", "-c", _COMPILER],
                input=marshal.dumps(sources, 2),
                capture_output=True,
                timeout=30,
                check=True,
            )
            magic, codes = marshal.loads(done.stdout)
            return magic, codes
        except (OSError, subprocess.SubprocessError, ValueError, EOFError):
            continue  # if none works, the nodes compile the sources
    return b"", dict.fromkeys(sources, b"")


def _is_this_interpreter(python: str) -> bool:
    found = shutil.which(python)
    return found is not None and os.path.realpath(found) == os.path.realpath(sys.executable)


def _code(name: str, source: str) -> CodeType:
    """Compile a source, or use the bytecode that Python keeps for the installed file: compiling all takes a second."""
    path = _PACKAGE.parent / name
    try:
        if path.read_text(encoding="utf-8") == source:
            code = SourceFileLoader(name, str(path)).get_code(name)
            if code is not None:
                return _with_file_name(code, name)
    except OSError:
        pass  # the source is not that of a file
    return compile(source, name, "exec")


def _with_file_name(code: CodeType, name: str) -> CodeType:
    """Return the code as if compiled from the file `name`: tracebacks show no path of the submitting host."""
    constants = [_with_file_name(each, name) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.replace(co_filename=name, co_consts=tuple(constants))
