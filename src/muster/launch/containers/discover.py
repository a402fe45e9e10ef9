"""The container of a job, with what only this machine can tell: which runtime there is, and is the image."""

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
NO_HOME = "--no-container-mount-home"  # pyxis's
# Each node has these of its own: what is not there on this machine may be on the nodes.
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local")


def container_of(spec: JobSpec, place: Target, workdir: str, runs: str, cwd: Path) -> Container | None:
    """Everything decided about the job's container; None for a job without one."""
    if spec.container_image is None:
        return None
    runtime, program = choose_runtime(spec.container_runtime, place.kind, os.environ)
    home = str(Path.home())
    is_path = pure.image_is_path(spec.container_image, runtime)
    image = pure.absolute(spec.container_image, str(cwd), home) if is_path else spec.container_image
    asked = pure.parse_mounts(spec.container_mounts or "", str(cwd), home)
    mounts = pure.all_mounts(asked, [workdir, runs])
    pure.check_mounts(runtime, mounts)
    inside = spec.container_workdir or workdir
    if not inside.startswith("/"):
        raise Mistake(f"--container-workdir {inside}: give the path from /")
    own = [part for word in _words(spec.container_args) for part in _in_its_words(word, runtime, program)]
    args = (*_arguments(spec, runtime, program, image), *own)
    if is_path:
        _check_image(image, place)
    if runtime == "charliecloud" and is_path and not {"-w", "--write", "-W", "--write-fake"} & set(args):
        _check_mount_points(image, mounts)
    return Container(runtime, program, image, is_path, mounts, inside, args)


def choose_runtime(asked: str, kind: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The runtime and the program that is it. What is not here but was asked for by name may be on the nodes."""
    if asked == "pyxis" and kind == "local":
        raise Mistake(
            "--container-runtime pyxis is a plugin of Slurm's srun, which a local run does without: "
            "use apptainer or charliecloud here"
        )
    if asked == "pyxis" or (asked == "auto" and kind != "local" and srun_has_pyxis()):
        return "pyxis", "srun"
    candidates = {"apptainer": APPTAINER, "charliecloud": ("ch-run",)}
    for runtime in [asked] if asked != "auto" else candidates:
        for program in candidates[runtime]:
            if shutil.which(program, path=env.get("PATH")):
                return runtime, program
    if asked != "auto" and kind != "local":
        return asked, candidates[asked][0]
    sought = ", ".join(
        program for runtime in candidates if asked in ("auto", runtime) for program in candidates[runtime]
    )
    pyxis = "" if kind == "local" else "srun has no --container-image (pyxis), and "
    hint = "" if kind == "local" else "; if the nodes have one, name it with --container-runtime"
    raise Mistake(f"--container-image: {pyxis}none of {sought} is on PATH{hint}")


def srun_has_pyxis() -> bool:
    """Whether srun offers the plugin's options; asks srun itself, not the controller."""
    return "--container-image" in _help("srun")


def _arguments(spec: JobSpec, runtime: str, program: str, image: str) -> list[str]:
    """Options that the image, the job or the runtime's version calls for, before the user's own."""
    if runtime == "apptainer" and (spec.gpus_per_node or "gpu" in (spec.gres or "")):
        return [] if {"--rocm", "--nvccli"} & set(_words(spec.container_args)) else ["--nv"]
    if runtime == "charliecloud":
        fake = ["--write-fake"] if "--write-fake" in _help(program) else []
        return [*fake, *(["--set-env"] if os.path.exists(image + "/ch/environment") else [])]
    return []


def _in_its_words(word: str, runtime: str, program: str) -> list[str]:
    """Translate the one argument that may be given before the runtime is known: the home directory stays outside."""
    if word != NO_HOME or runtime == "pyxis":
        return [word]
    # Releases of Charliecloud with --home mount it only where that is given.
    return ["--no-home"] if runtime == "apptainer" or " --home " not in _help(program) else []


def _words(text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise Mistake(f"--container-args: {error}: quote it as for a shell") from error


def _help(program: str) -> str:
    """What `PROGRAM --help` prints; nothing where there is no such program."""
    env = {"USER": "muster", **os.environ}  # ch-run insists on one
    try:
        done = subprocess.run([program, "--help"], env=env, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _check_image(image: str, place: Target) -> None:
    """A mistyped image is found before hours in the queue; one that only the nodes may have is theirs to find."""
    elsewhere = place.kind != "local" and (
        not os.path.isdir(os.path.dirname(image)) or any(Path(top) in Path(image).parents for top in NODE_LOCAL)
    )
    if not elsewhere and not os.path.exists(image):
        raise Mistake(f"--container-image {image}: no such file or directory")


def _check_mount_points(image: str, mounts: tuple[Mount, ...]) -> None:
    """Charliecloud (before --write-fake) mounts only on what a directory image has already."""
    shown = ("/tmp", "/dev", "/proc", "/sys")  # the host's own, whatever the image has there
    wanted = [mount.target for mount in mounts if "/" + mount.target.split("/")[1] not in shown]
    missing = [target for target in wanted if os.path.isdir(image) and not os.path.exists(image + target)]
    if missing:
        make = " ".join(shlex.quote(image + target) for target in missing)
        raise Mistake(f"the image has no directory to mount {missing[0]} on: `mkdir -p {make}` makes what is missing")
