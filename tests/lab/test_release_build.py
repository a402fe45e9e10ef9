"""A release of Slurm is built, with a program in place of mmdebstrap; `make test-slurm` builds real ones."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from tests.running import wait_for

from muster.lab import LabError, LabUnavailable, requirements
from muster.lab.debian_mirror import debian_mirror
from muster.lab.release_build import build
from muster.lab.releases import version_of

# Runs the hook as mmdebstrap does, with a root in which chroot stands in for the copy of Slurm.
BUILDS = """\
echo "I: running apt-get update..." >&2
echo "$TMPDIR" > @HERE@/tmpdir
printf '%s\\n' "$@" > @HERE@/arguments
mkdir -p "$TMPDIR/root/slurm-prefix/bin"
for word; do
  case $word in --customize-hook=*) sh -c "${word#*=}" exec "$TMPDIR/root" ;; esac
done
echo "I: success" >&2
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs before the system's; this user is root, and the mirror is known."""
    directory = tmp_path / "tools"
    directory.mkdir()
    monkeypatch.setattr(requirements, "SYSTEM_PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("MUSTER_DEBIAN_MIRROR", "http://mirror.example/debian")
    return directory


def write_program(directory: Path, name: str, script: str) -> None:
    program = directory / name
    program.write_text("#!/bin/sh\n" + script.replace("@HERE@", shlex.quote(str(directory))))
    program.chmod(0o755)


def test_a_build_reports_its_progress_and_leaves_only_the_prefix(tools: Path, tmp_path: Path) -> None:
    write_program(tools, "mmdebstrap", BUILDS)
    write_program(tools, "chroot", 'printf "%s\\n" "$@" > @HERE@/inside\n')
    messages: list[str] = []
    prefix = tmp_path / "the cache" / "24.11"
    build("trixie", prefix, messages.append)
    assert messages == ["running apt-get update...", "success"]
    assert os.listdir(prefix.parent) == ["24.11"] and (prefix / "bin").is_dir()
    arguments = (tools / "arguments").read_text()
    assert arguments.endswith("\ntrixie\n/dev/null\nhttp://mirror.example/debian\n")
    assert (tools / "tmpdir").read_text().startswith(f"{prefix.parent}/.24.11-")
    inside = (tools / "inside").read_text()
    assert "patchelf --force-rpath" in inside and inside.endswith(f"\nsh\n{prefix}\n")


def test_a_build_replaces_what_was_in_the_prefix(tools: Path, tmp_path: Path) -> None:
    write_program(tools, "mmdebstrap", BUILDS)
    write_program(tools, "chroot", "")
    (tmp_path / "24.11").mkdir()
    (tmp_path / "24.11" / "old").touch()
    build("trixie", tmp_path / "24.11", print)
    assert os.listdir(tmp_path / "24.11") == ["bin"]


def test_a_failed_build_names_the_mirror_and_the_error_and_leaves_nothing(tools: Path, tmp_path: Path) -> None:
    script = 'touch "$TMPDIR/part"; echo "Err:1 no route" >&2; echo "E: apt-get update failed" >&2; exit 1'
    write_program(tools, "mmdebstrap", script)
    with pytest.raises(LabError) as failure:
        build("sid", tmp_path / "cache" / "26.05", print)
    assert str(failure.value) == (
        "mmdebstrap failed, with the mirror http://mirror.example/debian; is it reachable?\nE: apt-get update failed"
    )
    assert os.listdir(tmp_path / "cache") == []


def test_an_interrupted_build_ends_mmdebstrap_and_leaves_nothing(tools: Path, tmp_path: Path) -> None:
    write_program(tools, "mmdebstrap", 'echo $$ > @HERE@/pid; echo "I: begun" >&2; exec sleep 1000')

    def interrupt(message: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build("trixie", tmp_path / "cache" / "24.11", interrupt)
    pid = (tools / "pid").read_text().strip()
    wait_for("the end of mmdebstrap", lambda: not Path("/proc", pid).exists())
    assert os.listdir(tmp_path / "cache") == []


def test_without_root_nothing_is_built(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabUnavailable, match="root"):
        build("trixie", tmp_path / "24.11", print)


def test_without_mmdebstrap_its_package_is_named(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "SYSTEM_PATH", str(tools))
    with pytest.raises(LabUnavailable, match="apt-get install mmdebstrap"):
        build("trixie", tmp_path / "24.11", print)


def why_no_build() -> str | None:
    """Why nothing can be built here, or None."""
    try:
        mirror = debian_mirror()
        urllib.request.urlopen(f"{mirror.rstrip('/')}/dists/trixie/InRelease", timeout=30).close()
    except (LabUnavailable, OSError) as error:
        return f"no Debian mirror: {error}"
    if os.geteuid() != 0 or not shutil.which("mmdebstrap", path=requirements.SYSTEM_PATH):
        return "a build needs root and mmdebstrap"
    return None


@pytest.mark.slow
def test_a_real_build_runs_beside_the_installed_slurm(tmp_path: Path) -> None:
    if reason := why_no_build():
        pytest.skip(reason)
    messages: list[str] = []
    prefix = tmp_path / "24.11"
    build("trixie", prefix, messages.append)
    assert any("apt-get update" in message for message in messages)
    assert (version_of(prefix) or "").startswith("24.11.")
    assert os.listdir(tmp_path) == ["24.11"]


def test_the_script_that_copies_slurm_is_valid_shell() -> None:
    script = Path(requirements.__file__).with_name("slurm_prefix.sh")
    subprocess.run(["sh", "-n", str(script)], check=True, timeout=120)
