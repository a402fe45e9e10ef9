"""System calls that Python lacks: one function each, which raises OSError with the call's name."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct

MACHINE = platform.machine()
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR, CLOSE_RANGE = 442, 436  # the same on every machine

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_NOATIME, MS_NODIRATIME = 1, 2, 4, 8, 32, 1024, 2048
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
AT_RECURSIVE, MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x8000, 1, 2, 4
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
TCP_BUFFERS = "4096 16384 65536"  # minimum, default and maximum in bytes: the memory of all connections is the host's
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63
MADV_COLLAPSE, HUGE_PAGE = 25, 2 << 20

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def checked(result: int, what: str) -> int:
    """Return the result of a call, or raise OSError from its errno."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: bytes | int | None) -> int:
    """Call a system call; integers are passed as whole registers, since the C function is variadic."""
    registers = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(libc.syscall(ctypes.c_long(number), *registers))


def prctl(option: int, value: int = 0) -> None:
    checked(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl({option})")


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), "unshare")


def bring_up_loopback() -> None:
    """Switch on the loopback interface of this network namespace, which has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", IFF_UP)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def limit_tcp_buffers() -> bool:
    """Limit the buffers of connections in this network namespace; return False if that is not allowed here."""
    try:
        for name in ("tcp_rmem", "tcp_wmem"):
            with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
                file.write(TCP_BUFFERS)
    except OSError:
        return False
    return True


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    done = libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    checked(done, f"mount of {kind or source} at {target}")


def unmount(target: str) -> None:
    checked(libc.umount2(target.encode(), MNT_DETACH), f"umount of {target}")


def pivot_root(new_root: str, old_root: str) -> None:
    checked(syscall(PIVOT_ROOT[MACHINE], new_root.encode(), old_root.encode()), "pivot_root")


def make_read_only(target: str) -> None:
    """Make a bind mount and all mounts below it read-only, without set-user-id programs and devices."""
    wanted = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
    attributes = struct.pack("=QQQQ", wanted, 0, 0, 0)
    if syscall(MOUNT_SETATTR, -100, target.encode(), AT_RECURSIVE, attributes, len(attributes)) == 0:
        return
    if ctypes.get_errno() not in (38, 22):  # ENOSYS, EINVAL: before Linux 5.12
        checked(-1, f"mount_setattr of {target}")
    for path in mounts_at_or_below(target):
        # In a user namespace the flags of a mount are locked: those it has must be given again.
        have = os.statvfs(path).f_flag & (MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
        flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | have
        mount("none", path, "", flags)


def mounts_at_or_below(target: str) -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        paths = [line.split()[4] for line in file]
    return [path for path in paths if path == target or path.startswith(target.rstrip("/") + "/")]


def forbid_capabilities() -> None:
    """Empty the bounding set, while we may: no program can gain capabilities, whatever its file grants."""
    for capability in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # there is no such capability, or we lack the right


def drop_capabilities() -> None:
    """Drop all capabilities for good, including those of a user namespace."""
    header = struct.pack("=II", CAPABILITY_VERSION_3, 0)
    checked(libc.capset(header, bytes(24)), "capset")


def use_huge_pages() -> None:
    """Put this process's memory into huge pages, where the kernel can (Linux 6.1): a fork then copies fewer tables."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        lines = [line.split() for line in file]
    for span, rights, _, _, inode, *_ in lines:
        first, last = (int(address, 16) for address in span.split("-"))
        if rights.startswith("rw") and inode == "0" and last - first >= HUGE_PAGE:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)  # best effort


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    if syscall(CLOSE_RANGE, first, 0xFFFFFFFF, 0) != 0:
        os.closerange(first, 4096)
