"""Build the supervisor's program as text for `python -c`: Muster need not be importable where it runs."""

from __future__ import annotations

import json
import sys
from types import ModuleType

from muster.process import (
    capture,
    cgroup,
    file_trees,
    lease_enforcer,
    log_segments,
    proctree,
    running_time,
    supervisor,
    unkillable,
)

MODULES = (
    proctree,
    log_segments,
    capture,
    cgroup,
    unkillable,
    running_time,
    lease_enforcer,
    supervisor,
)  # each after its imports; the last has main()
LAZY_MODULES = (file_trees,)  # compiled at the first import of a name: most supervisors never need them
_PROGRAM = """\
import json, sys, types
class Later(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        exec(compile(later[self.__name__], self.__name__, "exec"), self.__dict__)
        return self.__dict__[name]
modules, later = json.loads(sys.argv.pop(1))
sys.modules.update((name, Later(name)) for name in later)
for name, source in modules:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


def supervisor_command() -> list[str]:
    """Return the command that starts a supervisor, without the supervisor's arguments."""
    modules = [(module.__name__, source_of(module)) for module in MODULES]
    later = {module.__name__: source_of(module) for module in LAZY_MODULES}
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps([modules, later])]


def source_of(module: ModuleType) -> str:
    """Return a module's source for `python -c`. It need not be a file: agents import from memory."""
    assert module.__spec__ is not None and module.__spec__.loader is not None
    source: str = module.__spec__.loader.get_source(module.__name__)  # type: ignore[attr-defined]
    return source
