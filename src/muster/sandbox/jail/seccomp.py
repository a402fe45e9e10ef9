"""The system calls that sandboxed code may not make, as a filter for the kernel.

A refused call fails with an errno, so that programs can continue; a call through another machine's interface (32-bit,
x32) kills the process. The filter is inherited, covers raw calls and static programs, and cannot be removed.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence

from muster.sandbox.jail.kernel import MACHINE, PR_SET_SECCOMP, checked, libc

# name -> number on (x86_64, aarch64); None if it does not exist there.
CALLS: dict[str, tuple[int | None, int | None]] = {
    # other processes' memory and descriptors
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # ways around this filter, or large surfaces
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "seccomp": (317, 277),
    "vmsplice": (278, 75),
    # objects that outlive a process: System V and POSIX IPC, keys
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}
MEMORY_FILES = {"memfd_create": (319, 279), "memfd_secret": (447, 447)}
# They change limits or scheduling of the process whose pid is the first argument, 0 for the caller.
PROCESS_CALLS = {
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
# The same for a process, a group or a user: the first argument selects which, the second is its id.
# The last value selects a process; those for a group and a user follow it.
GROUP_CALLS = {"setpriority": (141, 140, 0), "ioprio_set": (251, 30, 1)}
SOCKET, CLONE, CLONE3, IOCTL, SETSOCKOPT = (41, 198), (56, 220), (435, 435), (16, 29), (54, 208)
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_NAMESPACES = 0x7E020000 | 0x80  # every CLONE_NEW* flag, CLONE_NEWTIME among them
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: they type into another process's terminal
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
LOCAL_FAMILIES = (AF_UNIX, AF_INET, AF_INET6)  # in a private network, which has only a loopback interface
INTERNET_FAMILIES = (AF_INET, AF_INET6)
SOCK_STREAM, SOCKET_TYPES = 1, 0xF  # the other bits of a type are flags
SOL_SOCKET, BUFFER_SIZES = 1, (7, 8)  # SO_SNDBUF, SO_RCVBUF

ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000


def filter_for(machine: str, families: Sequence[int] | None, memory_files: bool, others: Sequence[int] | None) -> bytes:
    """Return the filter program.

    `families` are the allowed socket families, None for all. `memory_files` allows memfd_create, whose memory only a
    cgroup limits. `others` are pids whose limits and scheduling may not be changed, None for all but the caller.
    """
    column = list(ARCHITECTURES).index(machine)
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, KILL_PROCESS),
        _instruction(_LOAD, _NUMBER),
        *([_instruction(_AT_LEAST, _X32, 0, 1), _instruction(_RETURN, KILL_PROCESS)] if machine == "x86_64" else []),
    ]
    refused = CALLS if memory_files else {**CALLS, **MEMORY_FILES}
    for numbers in refused.values():
        if numbers[column] is not None:
            code += _when(numbers[column], [_refuse(errno.EPERM)])
    code += _when(CLONE3[column], [_refuse(errno.ENOSYS)])  # its flags are in memory; libraries then use clone
    code += _when(CLONE[column], _on_argument(0, [(_ANY_BIT, NEW_NAMESPACES, errno.EPERM)], ALLOW))
    code += _when(IOCTL[column], _on_argument(1, [(_EQUAL, call, errno.EPERM) for call in TERMINAL_INPUT], ALLOW))
    for numbers in PROCESS_CALLS.values():
        code += _when(numbers[column], [_load(0), *_by_process(others)])
    for *columns, process in GROUP_CALLS.values():
        group, user = process + 1, process + 2
        code += _when(
            columns[column],
            [
                _load(0),
                *_test(_EQUAL, user, _refuse(errno.EPERM)),
                _load(1),
                *_test(_EQUAL, 0, _instruction(_RETURN, ALLOW)),  # the caller, or its own group
                _load(0),
                *_test(_EQUAL, group, _refuse(errno.EPERM)),
                _load(1),
                *_by_process(others),
            ],
        )
    if families is not None:
        code += _when(SOCKET[column], _on_socket(families))
        code += _when(SETSOCKOPT[column], _on_buffer_size())
    return b"".join([*code, _instruction(_RETURN, ALLOW)])


def install(program: bytes) -> None:
    """Apply the filter to this process and its future children. Needs no_new_privs (or root)."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    checked(libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), header, 0, 0), "seccomp filter")


def is_known_here() -> bool:
    return MACHINE in ARCHITECTURES


def _instruction(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, ERRNO | number)


def _when(number: int | None, block: list[bytes]) -> list[bytes]:
    """Run `block`, which returns, for this call; else continue."""
    assert number is not None and len(block) < 256
    return [_instruction(_EQUAL, number, 0, len(block)), *block]


def _on_argument(index: int, tests: Sequence[tuple[int, int, int]], otherwise: int) -> list[bytes]:
    """Decide by the low half of an argument: errno (0: allow) of the first test that holds, else `otherwise`."""
    block = [_load(index)]
    for test, value, number in tests:
        block += _test(test, value, _refuse(number) if number else _instruction(_RETURN, ALLOW))
    return [*block, _instruction(_RETURN, otherwise)]


def _on_socket(families: Sequence[int]) -> list[bytes]:
    """Allow the families, of the internet's only TCP: buffers of other sockets are limited by nothing but the host."""
    is_stream = [
        _load(1),
        _instruction(_AND, SOCKET_TYPES),
        *_test(_EQUAL, SOCK_STREAM, _instruction(_RETURN, ALLOW)),
        _refuse(errno.EACCES),
    ]
    block = [_load(0)]
    for family in families:
        if family not in INTERNET_FAMILIES:
            block += _test(_EQUAL, family, _instruction(_RETURN, ALLOW))
    for family in set(families) & set(INTERNET_FAMILIES):
        block += _when(family, is_stream)
    return [*block, _refuse(errno.EACCES)]


def _on_buffer_size() -> list[bytes]:
    """Ignore, as if it had succeeded, a request for larger buffers of a socket; allow other options."""
    ignore = [part for option in BUFFER_SIZES for part in _test(_EQUAL, option, _instruction(_RETURN, ERRNO))]
    block = [_load(2), *ignore, _instruction(_RETURN, ALLOW)]
    return [_load(1), *_when(SOL_SOCKET, block), _instruction(_RETURN, ALLOW)]


def _by_process(others: Sequence[int] | None) -> list[bytes]:
    """Decide by the loaded pid: refuse `others`, or all but 0."""
    if others is None:
        return [*_test(_EQUAL, 0, _instruction(_RETURN, ALLOW)), _refuse(errno.EPERM)]
    refused = [part for pid in others for part in _test(_EQUAL, pid, _refuse(errno.EPERM))]
    return [*refused, _instruction(_RETURN, ALLOW)]


def _load(index: int) -> bytes:
    return _instruction(_LOAD, _ARGUMENTS + 8 * index)


def _test(test: int, value: int, then: bytes) -> list[bytes]:
    return [_instruction(test, value, 0, 1), then]
