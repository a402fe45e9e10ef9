"""The supervisor's program as one text for `python -c`: Muster need not be importable where it runs."""

from __future__ import annotations

import json
import sys
from types import ModuleType

from muster.process import capture, cgroup, file_trees, proctree, supervisor, unkillable

MODULES = (proctree, capture, cgroup, unkillable, supervisor)  # each after those that it imports; the last has main()
LATER = (file_trees,)  # compiled when one of their names is first imported: most supervisors never need them
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
    """What starts a supervisor; its own arguments follow."""
    modules = [(module.__name__, source_of(module)) for module in MODULES]
    later = {module.__name__: source_of(module) for module in LATER}
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps([modules, later])]


def source_of(module: ModuleType) -> str:
    """A module's source, to be run by `python -c`: it need not be a file (agents import from memory)."""
    assert module.__spec__ is not None and module.__spec__.loader is not None
    source: str = module.__spec__.loader.get_source(module.__name__)  # type: ignore[attr-defined]
    return source
