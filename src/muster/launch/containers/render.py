"""Render the container of the job's step as srun flags (pyxis) or a command prefix (Apptainer, Charliecloud). Pure.

`discover` inspects this machine: which runtime it has, and whether the image exists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from shlex import quote
from typing import Any

from muster.errors import Mistake
from muster.exit_codes import CONTAINER_FAILED
from muster.launch.templates import render_template

REGISTRY_WARNING_NODES = 8  # with this many nodes, pulling an image on every node loads a registry

# bash if the image has it, since --setup may need it; the prelude itself runs in any sh.
SHELL = ("sh", "-c", 'if command -v bash >/dev/null 2>&1; then exec bash -c "$@"; fi; exec sh -c "$@"', "sh")

# Variables about interpreters and libraries of the host; the values that an image sets are kept.
_OUTSIDE_VARIABLES = "PYTHONHOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV BASH_ENV LD_PRELOAD"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Charliecloud passes all variables of the host through, unlike pyxis and Apptainer.
_CHARLIECLOUD_ENV = (f"--set-env=PATH={_SYSTEM_PATH}", "--unset-env=LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Mount:
    """A directory of the host that is mounted in the container. Flags in pyxis' notation: ro, ro+rprivate."""

    source: str
    target: str
    flags: str = ""

    def holds(self, path: str) -> bool:
        """Return whether the mount makes the path writable in the container under the same name."""
        pure = PurePath(path)
        below = PurePath(self.target) in (pure, *pure.parents)
        return self.source == self.target and below and "ro" not in self.flags.split("+")

    def __str__(self) -> str:
        return ":".join([self.source, self.target, *([self.flags] if self.flags else [])])


@dataclass(frozen=True)
class Container:
    """An image and all options for running it. job.json has it for sessions in the container."""

    runtime: str  # pyxis | apptainer | charliecloud
    program: str
    image: str
    is_path: bool  # a file or directory that the nodes must see, not a reference
    mounts: tuple[Mount, ...]
    workdir: str  # inside
    args: tuple[str, ...]  # further options

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Container:
        mounts = tuple(Mount(**mount) for mount in record["mounts"])
        return cls(**{**record, "mounts": mounts, "args": tuple(record["args"])})


@dataclass(frozen=True)
class WrappedStep:
    """The parts that a container adds to the job script: shell words, already quoted, and lines before and after."""

    srun_flags: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    prepare: str = ""
    cleanup: str = ""


@dataclass(frozen=True)
class ContainerEntry:
    """The arguments, not quoted, with which a further step enters the container of a running job."""

    srun_flags: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


def wrap_step(container: Container, run_id: str, host_variable: str, nodes: int, heartbeat: str) -> WrappedStep:
    """Return the parts of the job script that run its step in the container.

    `heartbeat` is shell code that writes the node's heartbeat while the runtime fetches and starts the image. It is not
    used with pyxis, which runs no command on the node before the container starts.
    """
    if container.runtime == "pyxis":
        flags = [quote(flag) for flag in _pyxis_flags(container)]
        if not _has_option(container.args, "--container-name"):
            flags.append('--container-name="$container"')
        name = f'"{container_name("$SLURM_JOB_ID", run_id, "$MUSTER_ATTEMPT")}"'
        prepare = render_template("pyxis_prepare.sh", CONTAINER_NAME=name, OUTSIDE_VARIABLES=_OUTSIDE_VARIABLES)
        return WrappedStep(tuple(flags), prepare=prepare, cleanup=render_template("pyxis_cleanup.sh", NODES=str(nodes)))
    # Charliecloud would mount TMPDIR as /tmp and hide mounts below the real /tmp.
    entry = render_template(
        "container_entry.sh",
        HOST_VARIABLE=host_variable,
        NO_CONTAINER=str(CONTAINER_FAILED),
        HEARTBEAT=heartbeat,
        OUTSIDE_VARIABLES=_OUTSIDE_VARIABLES + (" TMPDIR" if container.runtime == "charliecloud" else ""),
    )
    image = container.image if container.is_path else ""
    command = ["bash", "-c", f"\n{entry}\n", "muster-container"]
    return WrappedStep(prefix=(*map(quote, command), '"$attempt"', *map(quote, [image, *_runtime_words(container)])))


def enter(
    container: Container, run_id: str, job_id: str | None, attempt: int, node_index: int, agent_pid: int
) -> ContainerEntry:
    """Return how a further step on a node enters the container of a running job; the command follows the prefix.

    `agent_pid` is the pid of the node's agent, from its record in nodes/: in the pid namespace of its container.
    """
    if container.runtime == "pyxis":
        name = container_name(str(job_id), run_id, str(attempt))
        given = [arg.partition("=")[2] for arg in container.args if arg.startswith("--container-name=")]
        return ContainerEntry(
            srun_flags=(f"--container-name={(given or [name])[0]}", f"--container-workdir={container.workdir}")
        )
    if container.runtime == "charliecloud":
        user = ("sh", "-c", 'export USER="${USER:-$(id -un)}"; exec "$@"', "sh")  # ch-run requires USER
        joined = (container.program, f"--join-pid={agent_pid}", f"--cd={container.workdir}", *_CHARLIECLOUD_ENV)
        return ContainerEntry(prefix=(*user, *joined, container.image, "--"))
    runtime = " ".join(map(quote, _runtime_words(container)))
    join = render_template("apptainer_join.sh", RUNTIME=runtime, OUTSIDE_VARIABLES=_OUTSIDE_VARIABLES)
    return ContainerEntry(prefix=("sh", "-c", f"\n{join}\n", "muster-join", run_id, str(node_index), str(agent_pid)))


def container_name(job_id: str, run_id: str, attempt: str) -> str:
    """Return a name that is unique per run and attempt, because pyxis reuses a container of the same name."""
    return f"muster-{job_id}-{run_id[-4:]}-{attempt}"


def _pyxis_flags(container: Container) -> list[str]:
    flags = [f"--container-image={container.image}", f"--container-workdir={container.workdir}"]
    if container.mounts:
        flags.append("--container-mounts=" + ",".join(map(str, container.mounts)))
    return [*flags, *container.args]


def _runtime_words(container: Container) -> list[str]:
    """Return the runtime's command line up to the image; the command to run follows."""
    if container.runtime == "apptainer":
        binds = [word for mount in container.mounts for word in ("--bind", str(mount))]
        return [container.program, "exec", *binds, "--pwd", container.workdir, *container.args, container.image]
    binds = [f"--bind={mount.source}:{mount.target}" for mount in container.mounts]
    words = [container.program, *binds, f"--cd={container.workdir}", *_CHARLIECLOUD_ENV]
    return [*words, *container.args, container.image, "--"]


def _has_option(args: Sequence[str], option: str) -> bool:
    return any(arg == option or arg.startswith(option + "=") for arg in args)


# -- the user's options ---------------------------------------------------------------------------------------------


def parse_mounts(text: str, cwd: str, home: str) -> list[Mount]:
    """Parse a comma-separated list of SRC[:DST[:FLAGS]]; raise Mistake if it is invalid.

    >>> parse_mounts("/data:/mnt:ro, scratch", "/data", "/home/ann")
    [Mount(source='/data', target='/mnt', flags='ro'), Mount(source='/data/scratch', target='/data/scratch', flags='')]
    """
    mounts = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        source, _, rest = entry.partition(":")
        target, _, flags = rest.partition(":")
        source = absolute(source, cwd, home)
        if not source or (target and not target.startswith("/")) or ":" in flags:
            raise Mistake(f"--container-mounts: {entry!r} is not SRC[:DST[:FLAGS]] with an absolute path DST")
        mounts.append(Mount(source, target or source, flags))
    return mounts


def absolute(path: str, cwd: str, home: str) -> str:
    """Return the absolute path without using the filesystem; "" is unchanged."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return path and str(PurePath(cwd, path))


def all_mounts(requested: Sequence[Mount], needed: Sequence[str]) -> tuple[Mount, ...]:
    """Return the requested mounts and those that Muster needs in addition, parent directories first."""
    mounts = list(requested)
    for path in sorted(needed, key=len):
        if path != "/" and not any(mount.holds(path) for mount in mounts):
            mounts.append(Mount(path, path))
    return tuple(sorted(mounts, key=lambda mount: len(PurePath(mount.target).parts)))


def check_mounts(runtime: str, mounts: Sequence[Mount]) -> None:
    """Raise Mistake for mounts that the runtime's notation cannot express."""
    for mount in mounts:
        for path in (mount.source, mount.target):
            if re.search(r"[:,\s]" if runtime == "pyxis" else "[:,]", path):
                raise Mistake(f"{runtime} cannot mount {path!r}: the name contains a comma, a colon or a blank")
        if runtime == "charliecloud" and mount.flags not in ("", "rw"):
            raise Mistake(f"--container-mounts {mount}: charliecloud has no mount flags and cannot mount read-only")
        if runtime == "apptainer" and mount.flags not in ("", "ro", "rw"):
            raise Mistake(f"--container-mounts {mount}: apptainer has only the flags ro and rw")


def image_is_path(image: str, runtime: str) -> bool:
    """Return whether the runtime treats the image as a file or directory, not as a reference."""
    if "://" in image:
        return False
    return runtime == "apptainer" or image.startswith(("/", "./", "../", "~/")) or image.endswith((".sqsh", ".sqfs"))


def registry_warning(container: Container, nodes: int) -> str | None:
    """Return a warning if many nodes would each pull the image from a registry."""
    if container.is_path or container.runtime == "charliecloud" or nodes < REGISTRY_WARNING_NODES:
        return None
    bare = container.image.partition("://")[2] or container.image
    command = {
        "pyxis": f"enroot import -o image.sqsh docker://{bare}",
        "apptainer": f"{container.program} pull image.sif {container.image}",
    }[container.runtime]
    return (
        f"--container-image {container.image}: each of the {nodes} nodes would pull it from the registry; "
        f"import it to a file first: `{command}`"
    )
