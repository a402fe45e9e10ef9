"""Replace `muster` where it is not installed: this source is the `muster/__init__.py` of a run's library.

If the driver's environment has another package `muster`, that one is imported instead: an installed Muster has more
modules, two versions must not mix, and a user's package of that name must still be importable.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any


def find_other(library: str) -> ModuleSpec | None:
    """Return the `muster` that would be imported without this library and those of other runs."""
    path = [entry for entry in sys.path if os.path.basename(entry) != os.path.basename(library)]
    for finder in sys.meta_path:  # an editable installation may add a finder
        spec = finder.find_spec("muster", path)
        if spec is not None and spec.loader is not None:  # None: a directory of that name, not a package
            return spec
    return None


def import_instead(spec: ModuleSpec) -> None:
    """Make the current import of `muster` return this module."""
    module = sys.modules["muster"] = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)


def __getattr__(name: str) -> Any:
    if name == "beat":
        from muster.progress import beat

        return beat
    if name == "section":
        from muster.sections import section

        return section
    if name in ("exclude_node", "no_restart", "request_restart"):
        from muster import control_requests

        return getattr(control_requests, name)
    if name == "service":
        from muster.service_lookup import service

        return service
    raise AttributeError(
        f"module 'muster' has no attribute {name!r} here: Muster is not installed in this environment; a run brings "
        "only muster.placement, muster.process, muster.beat, muster.section, muster.service, muster.exclude_node, "
        "muster.no_restart, muster.request_restart and, with a sandbox, muster.sandbox"
    )


if __name__ == "muster" and (found := find_other(__loader__.archive)) is not None:  # type: ignore[name-defined]
    import_instead(found)
