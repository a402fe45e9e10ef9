"""The bundles of gVisor's sandboxes: what they show, in which order, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster.sandbox.engine import gvisor
from muster.sandbox.engine.gvisor import SandboxRoot, command, make_root, mounts, why_unusable, write_bundle


def plan(directory: Path | str, **changed: Any) -> dict[str, Any]:
    return {"directory": str(directory), "workspace": None, "scratch_mb": 32, "user": 7, "cgroups": [], **changed}


def test_the_root_has_mount_points_and_no_secret_of_the_host(tmp_path: Path) -> None:
    shown = tmp_path / "shown" / "file"
    shown.parent.mkdir()
    shown.write_text("content")
    root = make_root(str(tmp_path), [str(shown), "/usr/share"])
    assert Path(root.root + str(shown)).read_text() == ""  # only a mount point
    for path in ("proc", "sandbox", "tmp", "dev/shm", "mnt", "etc/hosts"):
        assert Path(root.root, path).exists()
    assert not Path(root.root, "etc/shadow").exists() and not Path(root.root, "etc/ssl/private").exists()
    assert make_root(str(tmp_path), [str(shown), "/usr/share"]) == root  # it is made once


def test_files_that_not_every_user_may_read_are_not_copied(tmp_path: Path) -> None:
    source = tmp_path / "etc"
    source.mkdir(mode=0o755)
    for name, mode in (("public", 0o644), ("secret", 0o600)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    gvisor._copy(str(source), str(tmp_path / "copy"))
    gvisor._copy(str(source / "secret"), str(tmp_path / "one"))
    assert os.listdir(tmp_path / "copy") == ["public"] and not (tmp_path / "one").exists()


def test_paths_below_the_scratch_are_below_one_read_only_mount() -> None:
    made = mounts(SandboxRoot("/r", ("/srv/data", "/tmp/a/env"), "/shown"), None, 32, 7)
    order = [one["destination"] for one in made]
    assert order.index("/tmp") < order.index("/tmp/a") < order.index("/tmp/a/env")
    by_place = {one["destination"]: one for one in made}
    assert by_place["/tmp/a"]["source"] == "/shown/tmp/a" and "ro" in by_place["/tmp/a"]["options"]
    assert by_place["/srv/data"]["source"] == "/srv/data" and "ro" in by_place["/srv/data"]["options"]
    assert {"size=32m", "mode=700", "uid=7", "gid=7"} <= set(by_place["/sandbox"]["options"])


def test_only_the_scratch_is_writable_and_that_of_a_workspace_is_shared() -> None:
    made = mounts(SandboxRoot("/r", ("/srv/data",), "/shown"), "/w", 32, 7)
    writable = {one["destination"]: one["source"] for one in made if one["type"] == "bind" and "rw" in one["options"]}
    assert writable == {"/sandbox": "/w/home", "/tmp": "/w/tmp"}
    assert {one["destination"] for one in made if one["type"] == "tmpfs"} == {"/dev/shm", "/mnt"}


def test_a_bundle_has_the_command_the_environment_and_few_rights(tmp_path: Path) -> None:
    directory = write_bundle(SandboxRoot("/r", (), "/shown"), plan(tmp_path), ["python", "-c", "x"], {"A": "b"})
    assert os.stat(directory).st_mode & 0o777 == 0o700
    config = json.loads(Path(directory, "config.json").read_text())
    assert config["process"]["args"] == ["python", "-c", "x"] and config["process"]["env"] == ["A=b"]
    assert "CAP_SYS_ADMIN" not in config["process"]["capabilities"]["bounding"]
    assert config["root"] == {"path": "/r", "readonly": True}
    assert {one["type"] for one in config["linux"]["namespaces"]} == {"pid", "mount", "ipc", "uts", "network"}


def test_the_sandbox_has_no_network_and_its_state_in_the_workers_directory() -> None:
    made = command("/bin/runsc", "/w/g", plan("/w"), is_root=True)
    assert "--network=none" in made and "--ignore-cgroups" in made and "--rootless" not in made
    assert made[made.index("--root") + 1] == made[made.index("--bundle") + 1] == "/w/g"
    assert "--file-access-mounts=exclusive" in made and "--rootless" in command("/r", "/w/g", plan("/w"), False)
    assert "--file-access-mounts=shared" in command("/r", "/w/g", plan("/w", workspace="/x"), True)


def test_the_sandbox_is_in_the_cgroups_of_its_worker_from_its_first_process_on(tmp_path: Path) -> None:
    groups = [tmp_path / "memory", tmp_path / "pids"]
    for group in groups:
        group.mkdir()
    made = command("/bin/echo", "/w/g", plan("/w", cgroups=[str(group) for group in groups]), True)
    done = subprocess.run(made, capture_output=True, text=True, check=True)
    assert "--network=none" in done.stdout  # of the command itself, here echo
    pids = {(group / "cgroup.procs").read_text() for group in groups}
    assert len(pids) == 1 and pids.pop().strip().isdigit()
    missing = command("/bin/echo", "/w/g", plan("/w", cgroups=[str(tmp_path / "none")]), True)
    assert subprocess.run(missing, capture_output=True).returncode != 0


def test_what_cannot_work_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor, "find_runsc", lambda: None)
    assert "no runsc (gVisor) in PATH" in str(why_unusable("/tmp/box", False))
    monkeypatch.setattr(gvisor, "find_runsc", lambda: "/bin/runsc")
    assert why_unusable("/tmp/box", False) is None
    assert "leave out --network" in str(why_unusable("/tmp/box", True))
    assert "--scratch-dir" in str(why_unusable("/tmp/" + 80 * "x", False))


def test_runsc_is_searched_in_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gvisor.find_runsc() is None
    (tmp_path / "runsc").touch(0o755)
    assert gvisor.find_runsc() == str(tmp_path / "runsc")
