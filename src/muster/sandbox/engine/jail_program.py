"""The sources of the jail, and the bootstrap with which an interpreter without Muster runs them."""

from __future__ import annotations

import importlib
import json

from muster.process import source_of

JAIL_MODULES = (
    "confine",
    "execution",
    "kernel",
    "landlock",
    "program",
    "repl",
    "rootfs",
    "seccomp",
    "session",
    "state",
    "tree",
    "wire",
    "worker",
    "zygote",
)
PROCESS_MODULES = ("muster.process.memory_file", "muster.process.proctree", "muster.process.file_trees")
PACKAGES = ("muster", "muster.process", "muster.sandbox", "muster.sandbox.jail")

# Its stdin is a socket; the first packet carries a file descriptor: modules and config as JSON.
BOOTSTRAP = """\
import json, os, socket, sys
from importlib.machinery import ModuleSpec
channel = socket.socket(fileno=os.dup(0))
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)
os.close(null)
data, fds, _, _ = socket.recv_fds(channel, 65536, 1)
with os.fdopen(fds[0], "rb") as file:
    sent = json.load(file)
class FromMemory:
    of_sandbox = True
    def find_spec(self, name, path=None, target=None):
        if name not in sent["modules"]:
            return None
        return ModuleSpec(name, self, origin="<sandbox>", is_package=sent["modules"][name] is None)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(sent["modules"][module.__name__] or "", "<sandbox>/" + module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, FromMemory())
from muster.sandbox.jail.zygote import main
main(channel, sent["config"])
"""


def bundle(config: dict[str, object]) -> bytes:
    """Return the JSON that the bootstrap reads."""
    names = [*PROCESS_MODULES, *(f"muster.sandbox.jail.{name}" for name in JAIL_MODULES)]
    modules: dict[str, str | None] = dict.fromkeys(PACKAGES)
    modules.update({name: source_of(importlib.import_module(name)) for name in names})
    return json.dumps({"modules": modules, "config": config}).encode()
