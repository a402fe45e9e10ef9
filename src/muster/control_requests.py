"""`muster.exclude_node()`, `no_restart()` and `request_restart()`: a program of a run asks Muster for a reaction.

A request is a file in a directory on the node's disk, which the agent of the node reads and passes on to the leader.
The agent removes the file when the leader has recorded the request; the call waits for that. Programs in other
languages can exit with a code instead, see --control-exit-codes.
"""

from __future__ import annotations

import json
import os
import secrets
import time

DIRECTORY_VARIABLE, RUN_VARIABLE = "MUSTER_CONTROL_DIR", "MUSTER_RUN_ID"
CREATE_TRIES = 100  # each fails only if another process removes the parent at the same moment
RECORD_TIMEOUT_S = 10.0  # usually half a second; a leader that was lost is replaced later than this
RECORD_POLL_S = 0.05
WHEN = ("now", "next_restart")


def exclude_node(reason: str, when: str = "now", timeout: float = RECORD_TIMEOUT_S) -> bool:
    """Request that this run never again uses the node on which the caller runs.

    With `when="now"` the run reacts as if it had lost the node (--on-node-loss); with "next_restart" it goes on until
    something else begins another cycle, which then leaves the node out. The request is evidence that the node is bad,
    so requeued jobs avoid it, too. Return whether the request was recorded within `timeout` seconds; False outside a
    run. Raise ValueError for another `when`.
    """
    if when not in WHEN:
        raise ValueError(f"when={when!r}: must be one of {', '.join(WHEN)}")
    return _request("exclude_node", reason, when, timeout)


def no_restart(reason: str, timeout: float = RECORD_TIMEOUT_S) -> bool:
    """Request that a later failure ends the run: with this reason, without another cycle and without a requeue.

    Return whether the request was recorded within `timeout` seconds; False outside a run.
    """
    return _request("no_restart", reason, None, timeout)


def request_restart(reason: str, timeout: float = RECORD_TIMEOUT_S) -> bool:
    """Request another cycle (--max-restarts); the run fails with this reason if it may not begin one.

    The caller is ended with all other processes of the cycle, usually before this function returns. Return whether the
    request was recorded within `timeout` seconds; False outside a run.
    """
    return _request("request_restart", reason, None, timeout)


def _request(kind: str, reason: str, when: str | None, timeout: float) -> bool:
    directory = own_directory()
    if directory is None:
        return False
    record = {"kind": kind, "reason": str(reason), "when": when, "rank": os.environ.get("RANK")}
    path = os.path.join(directory, f"{time.time_ns()}-{secrets.token_hex(4)}.json")
    try:
        create_directory(directory)
        with open(f"{path}.tmp", "x", encoding="utf-8") as file:
            json.dump(record, file)
        os.rename(f"{path}.tmp", path)
    except OSError:
        return False  # the cycle is being ended
    return _wait_until_recorded(path, timeout)


def _wait_until_recorded(path: str, timeout: float) -> bool:
    end = time.monotonic() + timeout
    while os.path.exists(path):
        if time.monotonic() >= end:
            return False
        time.sleep(RECORD_POLL_S)
    return os.path.isdir(os.path.dirname(path))  # else the cycle has ended, and with it the request


def own_directory() -> str | None:
    """Return the directory for requests on this node; None outside a run.

    Frameworks copy the driver's variables to actors on other nodes. What started the actor, Ray's raylet, has the
    variables of its own node: the ones of the outermost ancestor in this run are right.
    """
    directory, run = os.environ.get(DIRECTORY_VARIABLE), os.environ.get(RUN_VARIABLE)
    if directory is None:
        return None
    pid = os.getppid()
    while pid > 1:
        variables = _variables(pid)
        if variables.get(RUN_VARIABLE) == run:
            directory = variables.get(DIRECTORY_VARIABLE, directory)
        pid = _parent(pid)
    return directory


def create_directory(path: str) -> None:
    """Create the directory for requests, and its parent in /tmp, unless they exist.

    Programs do this, and not the agent: a killed agent leaves nothing behind in runs without requests. Raise OSError
    if others can access the parent, or it cannot be created.
    """
    parent = os.path.dirname(path)
    for left in reversed(range(CREATE_TRIES)):
        os.makedirs(parent, mode=0o700, exist_ok=True)
        info = os.lstat(parent)
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise PermissionError(f"{parent} is not a directory that only this user can access")
        try:
            os.mkdir(path, mode=0o700)
            return
        except FileExistsError:
            return
        except FileNotFoundError:  # an agent of this machine that ended has removed the parent
            if not left:
                raise


def _variables(pid: int) -> dict[str, str]:
    """Return the two variables of a process, as far as it has them and lets this process read them."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name in (DIRECTORY_VARIABLE, RUN_VARIABLE)}


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])  # the program's name may contain parentheses
    except (OSError, ValueError, IndexError):
        return 0
