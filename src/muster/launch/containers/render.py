"""The container around the one step of the job: flags of srun's (pyxis), or a prefix (Apptainer, Charliecloud). Pure.

What looks at this machine (which runtime is there, is the image) stands in `container_here`.
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

MANY_NODES = 8  # from here on a registry feels it when every node pulls an image

# Bash where the image has it, since --setup may be written for it; the prelude itself is content with sh.
SHELL = ("sh", "-c", 'if command -v bash >/dev/null 2>&1; then exec bash -c "$@"; fi; exec sh -c "$@"', "sh")

# They describe an interpreter, or libraries, of the machine outside. What an image sets itself stays.
_OUTSIDE_VARIABLES = "PYTHONHOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV BASH_ENV LD_PRELOAD"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Charliecloud passes everything through, also what names places outside; pyxis and Apptainer know better.
_CHARLIECLOUD_ENV = (f"--set-env=PATH={_SYSTEM_PATH}", "--unset-env=LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Mount:
    """A directory of the host's inside the container. Flags as pyxis spells them: ro, ro+rprivate."""

    source: str
    target: str
    flags: str = ""

    def holds(self, path: str) -> bool:
        """Whether the path is in it, at the same place as outside and writable."""
        at = PurePath(path)
        here = PurePath(self.target) in (at, *at.parents)
        return self.source == self.target and here and "ro" not in self.flags.split("+")

    def __str__(self) -> str:
        return ":".join([self.source, self.target, *([self.flags] if self.flags else [])])


@dataclass(frozen=True)
class Container:
    """An image and how it is run, with everything decided. It stands in job.json, for whoever enters it later."""

    runtime: str  # pyxis | apptainer | charliecloud
    program: str
    image: str
    is_path: bool  # a file or directory that nodes must see, not a name that the runtime looks up
    mounts: tuple[Mount, ...]
    workdir: str  # inside
    args: tuple[str, ...]  # further options, the user's and those that the machine calls for

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Container:
        mounts = tuple(Mount(**mount) for mount in record["mounts"])
        return cls(**{**record, "mounts": mounts, "args": tuple(record["args"])})


@dataclass(frozen=True)
class Wrapping:
    """What a container adds to the job script: words for the shell, already quoted, and lines before and after."""

    srun_flags: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    prepare: str = ""
    cleanup: str = ""


@dataclass(frozen=True)
class Way:
    """How a further step gets into the container of a running job: arguments, not yet quoted for a shell."""

    srun_flags: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


def wrap(container: Container, run_id: str, host_variable: str, nodes: int, heartbeat: str) -> Wrapping:
    """The container around the job's step.

    `heartbeat`: shell lines that show that the node lives while the runtime fetches and starts the image. With pyxis
    nothing of ours runs on the node before the container does.
    """
    if container.runtime == "pyxis":
        flags = [quote(flag) for flag in _pyxis_flags(container)]
        if not _gives(container.args, "--container-name"):
            flags.append('--container-name="$container"')
        name = f'"{container_name("$SLURM_JOB_ID", run_id, "$MUSTER_ATTEMPT")}"'
        prepare = render_template("pyxis_prepare.sh", CONTAINER_NAME=name, OUTSIDE_VARIABLES=_OUTSIDE_VARIABLES)
        return Wrapping(tuple(flags), prepare=prepare, cleanup=render_template("pyxis_cleanup.sh", NODES=str(nodes)))
    # Charliecloud would show what TMPDIR names as /tmp, and hide what is mounted below the real one.
    entry = render_template(
        "container_entry.sh",
        HOST_VARIABLE=host_variable,
        NO_CONTAINER=str(CONTAINER_FAILED),
        HEARTBEAT=heartbeat,
        OUTSIDE_VARIABLES=_OUTSIDE_VARIABLES + (" TMPDIR" if container.runtime == "charliecloud" else ""),
    )
    image = container.image if container.is_path else ""
    before = ["bash", "-c", f"\n{entry}\n", "muster-container"]
    return Wrapping(prefix=(*map(quote, before), '"$attempt"', *map(quote, [image, *_runtime_words(container)])))


def way_into(container: Container, run_id: str, job_id: str | None, attempt: int, agent_pid: int) -> Way:
    """Into the container of a running job, from a further step on one of its nodes; the command follows the prefix.

    `agent_pid` is that of the node's agent (its record in nodes/). Apptainer's images do not change while they run:
    another container of the same image, with the same mounts, is as good as the first.
    """
    if container.runtime == "pyxis":
        name = container_name(str(job_id), run_id, str(attempt))
        given = [arg.partition("=")[2] for arg in container.args if arg.startswith("--container-name=")]
        return Way(srun_flags=(f"--container-name={(given or [name])[0]}", f"--container-workdir={container.workdir}"))
    if container.runtime == "charliecloud":
        user = ("sh", "-c", 'export USER="${USER:-$(id -un)}"; exec "$@"', "sh")  # it insists on one
        joined = (container.program, f"--join-pid={agent_pid}", f"--cd={container.workdir}", *_CHARLIECLOUD_ENV)
        return Way(prefix=(*user, *joined, container.image, "--"))
    return Way(prefix=tuple(_runtime_words(container)))


def container_name(job_id: str, run_id: str, attempt: str) -> str:
    """pyxis takes a container that has this name already: no other run or attempt of the same job may have it."""
    return f"muster-{job_id}-{run_id[-4:]}-{attempt}"


def _pyxis_flags(container: Container) -> list[str]:
    flags = [f"--container-image={container.image}", f"--container-workdir={container.workdir}"]
    if container.mounts:
        flags.append("--container-mounts=" + ",".join(map(str, container.mounts)))
    return [*flags, *container.args]


def _runtime_words(container: Container) -> list[str]:
    """The runtime's command line up to the image; the command inside follows."""
    if container.runtime == "apptainer":
        binds = [word for mount in container.mounts for word in ("--bind", str(mount))]
        return [container.program, "exec", *binds, "--pwd", container.workdir, *container.args, container.image]
    binds = [f"--bind={mount.source}:{mount.target}" for mount in container.mounts]
    words = [container.program, *binds, f"--cd={container.workdir}", *_CHARLIECLOUD_ENV]
    return [*words, *container.args, container.image, "--"]


def _gives(args: Sequence[str], option: str) -> bool:
    return any(arg == option or arg.startswith(option + "=") for arg in args)


# -- reading what the user wrote ------------------------------------------------------------------------------------


def parse_mounts(text: str, cwd: str, home: str) -> list[Mount]:
    """SRC[:DST[:FLAGS]], several with commas.

    >>> parse_mounts("/data:/mnt:ro, scratch", "/data", "/home/ann")
    [Mount(source='/data', target='/mnt', flags='ro'), Mount(source='/data/scratch', target='/data/scratch', flags='')]
    """
    mounts = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        source, _, rest = entry.partition(":")
        target, _, flags = rest.partition(":")
        source = absolute(source, cwd, home)
        if not source or (target and not target.startswith("/")) or ":" in flags:
            raise Mistake(f"--container-mounts: {entry!r} is not SRC[:DST[:FLAGS]] with DST a path from /")
        mounts.append(Mount(source, target or source, flags))
    return mounts


def absolute(path: str, cwd: str, home: str) -> str:
    """The path from /, without asking the filesystem; "" stays what it is."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return path and str(PurePath(cwd, path))


def all_mounts(asked: Sequence[Mount], own: Sequence[str]) -> tuple[Mount, ...]:
    """What was asked for and our own directories, unless they are in it already; outer ones first."""
    mounts = list(asked)
    for path in sorted(own, key=len):
        if path != "/" and not any(mount.holds(path) for mount in mounts):
            mounts.append(Mount(path, path))
    return tuple(sorted(mounts, key=lambda mount: len(PurePath(mount.target).parts)))


def check_mounts(runtime: str, mounts: Sequence[Mount]) -> None:
    """Refuse what the runtime's own notation cannot say."""
    for mount in mounts:
        for path in (mount.source, mount.target):
            if re.search(r"[:,\s]" if runtime == "pyxis" else "[:,]", path):
                raise Mistake(f"{runtime} cannot mount {path!r}: the name has a comma, a colon or a blank in it")
        if runtime == "charliecloud" and mount.flags not in ("", "rw"):
            raise Mistake(f"--container-mounts {mount}: charliecloud has no mount flags, it cannot mount read-only")
        if runtime == "apptainer" and mount.flags not in ("", "ro", "rw"):
            raise Mistake(f"--container-mounts {mount}: apptainer knows the flags ro and rw alone")


def image_is_path(image: str, runtime: str) -> bool:
    """A file or directory, as the runtime would take it, and not a name that it looks up elsewhere."""
    if "://" in image:
        return False
    return runtime == "apptainer" or image.startswith(("/", "./", "../", "~/")) or image.endswith((".sqsh", ".sqfs"))


def registry_warning(container: Container, nodes: int) -> str | None:
    """For an image that every node would pull by itself, when there are many."""
    if container.is_path or container.runtime == "charliecloud" or nodes < MANY_NODES:
        return None
    bare = container.image.partition("://")[2] or container.image
    how = {
        "pyxis": f"enroot import -o image.sqsh docker://{bare}",
        "apptainer": f"{container.program} pull image.sif {container.image}",
    }[container.runtime]
    return (
        f"--container-image {container.image}: each of the {nodes} nodes pulls it from the registry; "
        f"import it to a file first: `{how}`"
    )
