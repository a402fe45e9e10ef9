"""`muster` where it is not installed: this module's source is the `muster/__init__.py` of a run's library (library.py).

Whatever else is called `muster` there takes its place, and wholly: an installed Muster has more than the library, and
two versions must not mix; and a package of the user's own must go on to be found under its name.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any


def other(library: str) -> ModuleSpec | None:
    """What `import muster` would find without this library, or that of another run."""
    path = [entry for entry in sys.path if os.path.basename(entry) != os.path.basename(library)]
    for finder in sys.meta_path:  # an editable installation may have one of its own
        spec = finder.find_spec("muster", path)
        if spec is not None and spec.loader is not None:  # None: a directory of that name, and no package
            return spec
    return None


def give_way(spec: ModuleSpec) -> None:
    """The import that is under way results in the other one."""
    module = sys.modules["muster"] = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)


def __getattr__(name: str) -> Any:
    if name == "beat":
        from muster.progress import beat

        return beat
    raise AttributeError(
        f"module 'muster' has no attribute {name!r} here: Muster is not installed in this environment, and with a run "
        "travel muster.placement, muster.process and muster.beat alone; muster.sandbox, if one is among its services"
    )


if __name__ == "muster" and (found := other(__loader__.archive)) is not None:  # type: ignore[name-defined]
    give_way(found)
