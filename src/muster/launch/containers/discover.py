"""Decide on the container of a job: find the runtime, its version and the image on this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from muster.errors import Mistake
from muster.launch.containers import render as pure
from muster.launch.containers.render import Container, Mount
from muster.launch.target import Target
from muster.spec import JobSpec

APPTAINER = ("apptainer", "singularity")
NO_HOME = "--no-container-mount-home"  # option of pyxis
# Directories that differ between nodes: a file that this machine does not have may exist on the nodes.
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local")


def container_of(spec: JobSpec, target: Target, workdir: str, runs: str, cwd: Path) -> Container | None:
    """Return the job's container, or None for a job without one; raise Mistake if it cannot work."""
    if spec.container_image is None:
        return None
    runtime, program = choose_runtime(spec.container_runtime, target.kind, os.environ)
    home = str(Path.home())
    is_path = pure.image_is_path(spec.container_image, runtime)
    image = pure.absolute(spec.container_image, str(cwd), home) if is_path else spec.container_image
    requested = pure.parse_mounts(spec.container_mounts or "", str(cwd), home)
    mounts = pure.all_mounts(requested, [workdir, runs])
    pure.check_mounts(runtime, mounts)
    inside = spec.container_workdir or workdir
    if not inside.startswith("/"):
        raise Mistake(f"--container-workdir {inside}: must be an absolute path")
    user_args = [arg for word in _split(spec.container_args) for arg in _translate(word, runtime, program)]
    args = (*_default_arguments(spec, runtime, program, image), *user_args)
    if is_path:
        _check_image(image, target)
    if runtime == "charliecloud" and is_path and not {"-w", "--write", "-W", "--write-fake"} & set(args):
        _check_mount_points(image, mounts)
    return Container(runtime, program, image, is_path, mounts, inside, args)


def choose_runtime(requested: str, kind: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the runtime and its program. A runtime that --container-runtime names may exist only on the nodes."""
    if requested == "pyxis" and kind == "local":
        raise Mistake(
            "--container-runtime pyxis is a plugin of srun, which local runs do not use; use apptainer or charliecloud"
        )
    if requested == "pyxis" or (requested == "auto" and kind != "local" and srun_has_pyxis()):
        return "pyxis", "srun"
    candidates = {"apptainer": APPTAINER, "charliecloud": ("ch-run",)}
    for runtime in [requested] if requested != "auto" else candidates:
        for program in candidates[runtime]:
            if shutil.which(program, path=env.get("PATH")):
                return runtime, program
    if requested != "auto" and kind != "local":
        return requested, candidates[requested][0]
    programs = ", ".join(
        program for runtime in candidates if requested in ("auto", runtime) for program in candidates[runtime]
    )
    pyxis = "" if kind == "local" else "srun has no option --container-image (pyxis), and "
    hint = "" if kind == "local" else "; if the nodes have a runtime, set --container-runtime"
    raise Mistake(f"--container-image: {pyxis}none of {programs} is on PATH{hint}")


def srun_has_pyxis() -> bool:
    """Return whether `srun --help` lists the options of pyxis; this needs no controller."""
    return "--container-image" in _help("srun")


def _default_arguments(spec: JobSpec, runtime: str, program: str, image: str) -> list[str]:
    """Return the options that the image, the job or the version of the runtime requires."""
    if runtime == "apptainer" and (spec.gpus_per_node or "gpu" in (spec.gres or "")):
        return [] if {"--rocm", "--nvccli"} & set(_split(spec.container_args)) else ["--nv"]
    if runtime == "charliecloud":
        fake = ["--write-fake"] if "--write-fake" in _help(program) else []
        return [*fake, *(["--set-env"] if os.path.exists(image + "/ch/environment") else [])]
    return []


def _translate(word: str, runtime: str, program: str) -> list[str]:
    """Translate NO_HOME, which may be given before the runtime is known, into the runtime's option."""
    if word != NO_HOME or runtime == "pyxis":
        return [word]
    # Releases of Charliecloud that have --home mount the home directory only with it.
    return ["--no-home"] if runtime == "apptainer" or " --home " not in _help(program) else []


def _split(text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise Mistake(f"--container-args: {error}: quote it as in a shell") from error


def _help(program: str) -> str:
    """Return the output of `PROGRAM --help`; empty if the program is missing."""
    env = {"USER": "muster", **os.environ}  # ch-run requires USER
    try:
        done = subprocess.run([program, "--help"], env=env, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _check_image(image: str, target: Target) -> None:
    """Raise Mistake for a missing image, unless it may exist only on the nodes: better now than after the queue."""
    on_nodes_only = target.kind != "local" and any(Path(top) in Path(image).parents for top in NODE_LOCAL)
    if not on_nodes_only and not os.path.exists(image):
        exception = f" on this host; only images below {', '.join(NODE_LOCAL)} may exist on the nodes only"
        raise Mistake(
            f"--container-image {image}: no such file or directory{'' if target.kind == 'local' else exception}"
        )


def _check_mount_points(image: str, mounts: tuple[Mount, ...]) -> None:
    """Raise Mistake for missing mount points, which Charliecloud before --write-fake cannot create in a directory."""
    from_host = ("/tmp", "/dev", "/proc", "/sys")  # mounted from the host, so they need no mount point
    targets = [mount.target for mount in mounts if "/" + mount.target.split("/")[1] not in from_host]
    missing = [target for target in targets if os.path.isdir(image) and not os.path.exists(image + target)]
    if missing:
        paths = " ".join(shlex.quote(image + target) for target in missing)
        raise Mistake(f"the image has no directory to mount {missing[0]} on; create it: `mkdir -p {paths}`")
