"""System calls that Python lacks: their effect on a process, and errors with the call's name."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.forked import needs_root, value_of

from muster.sandbox.jail import kernel

GETPID = {"x86_64": 39, "aarch64": 172}[kernel.MACHINE]


def status_of_process(name: str) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith(f"{name}:"))


def test_a_failed_call_raises_its_errno_and_its_name() -> None:
    with pytest.raises(OSError, match="umount of /no/such/mount") as caught:
        kernel.unmount("/no/such/mount")
    assert caught.value.errno in (errno.EINVAL, errno.ENOENT, errno.EPERM)
    assert kernel.checked(7, "anything") == 7


def test_a_call_is_made_by_its_number() -> None:
    assert kernel.syscall(GETPID) == os.getpid()
    assert kernel.syscall(100_000) == -1


def test_prctl_sets_an_attribute_of_this_process() -> None:
    def no_new_privileges() -> str:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        return status_of_process("NoNewPrivs")

    assert value_of(no_new_privileges) == "1"
    with pytest.raises(OSError, match=r"prctl\(9999\)"):
        kernel.prctl(9999)


def test_every_descriptor_from_the_first_on_is_closed() -> None:
    def left() -> list[bool]:
        null = os.open("/dev/null", os.O_RDONLY)
        for fd in (700, 701, 900):
            os.dup2(null, fd)
        kernel.close_from(701)
        return [os.path.exists(f"/proc/self/fd/{fd}") for fd in (700, 701, 900)]

    assert value_of(left) == [True, False, False]


def test_mounts_are_found_at_and_below_a_path() -> None:
    found = kernel.mounts_at_or_below("/proc")
    assert "/proc" in found and all(path == "/proc" or path.startswith("/proc/") for path in found)
    assert kernel.mounts_at_or_below("/pro") == []
    assert set(found) < set(kernel.mounts_at_or_below("/"))


@needs_root
def test_capabilities_are_dropped_for_good() -> None:
    def left() -> list[str]:
        kernel.forbid_capabilities()
        kernel.drop_capabilities()
        return [status_of_process(name).strip("0") for name in ("CapEff", "CapPrm", "CapInh", "CapBnd")]

    assert value_of(left) == ["", "", "", ""]


@needs_root
def test_a_new_namespace_is_this_process_s_own() -> None:
    def rename() -> str:
        kernel.unshare(kernel.CLONE_NEWUTS)
        socket.sethostname("another")
        return socket.gethostname()

    before = socket.gethostname()
    assert value_of(rename) == "another" and socket.gethostname() == before


@needs_root
@pytest.mark.parametrize("has_mount_setattr", [True, False], ids=["Linux 5.12", "before"])
def test_a_bind_mount_and_those_below_it_become_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_mount_setattr: bool
) -> None:
    (tmp_path / "top" / "below").mkdir(parents=True)
    if not has_mount_setattr:
        monkeypatch.setattr(kernel, "MOUNT_SETATTR", 100_000)  # ENOSYS

    def attempts() -> list[Any]:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount(str(tmp_path / "top"), str(tmp_path / "top"), "", kernel.MS_BIND)
        kernel.mount("tmpfs", str(tmp_path / "top" / "below"), "tmpfs", 0)
        kernel.make_read_only(str(tmp_path / "top"))
        found: list[Any] = []
        for place in (tmp_path, tmp_path / "top", tmp_path / "top" / "below"):
            try:
                (place / "file").write_text("x")
                found.append("written")
            except OSError as error:
                found.append(error.errno)
        kernel.unmount(str(tmp_path / "top" / "below"))
        return found

    assert value_of(attempts) == ["written", errno.EROFS, errno.EROFS]


def test_huge_pages_are_asked_for_without_an_effect_on_the_content() -> None:
    def unchanged() -> bool:
        data = bytearray(b"x" * (6 << 20))
        kernel.use_huge_pages()
        return data == b"x" * (6 << 20)

    assert value_of(unchanged)
