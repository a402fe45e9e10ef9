"""A lab whose shared directory is on a real network filesystem, GlusterFS: one server, one client on each machine.

The server is in the controller's network. `.ci/glusterfs-root` makes the root directory that has GlusterFS. Its
programs run in a chroot; nothing of it is installed on this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.lab import Lab
from muster.lab.errors import LabError
from muster.lab.plan import CONTROLLER
from muster.lab.process import all_pids, namespace_id

ROOT = Path(sys.prefix) / "filesystems" / "glusterfs"
VOLUME = "lab"
PING_TIMEOUT_S = 5  # after which a client gives up a silent server; 42 s by default
SERVER_DEADLINE_S = 120.0
BRICK = "/mnt/server/brick"

# $1: the root directory, $2: the directory with all that the server writes. Everything ends with the first process.
_SERVER = """
set -e
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/run"
mkdir -p "$1/mnt/server" "$2/brick" "$2/lib" "$2/log"
mount --bind "$2" "$1/mnt/server"
mount --bind "$2/lib" "$1/var/lib/glusterd"
mount --bind "$2/log" "$1/var/log/glusterfs"
exec chroot "$1" tini -g -- glusterd -N --log-level=ERROR
"""

# $1: the root directory, $2: the directory to mount it over, $3: a name, then the options of glusterfs.
_CLIENT = """
set -e
root=$1 target=$2 name=$3
shift 3
mkdir -p "$root/mnt/$name"
chroot "$root" glusterfs --log-level=ERROR --log-file="/var/log/glusterfs/$name.log" "$@" "/mnt/$name"
mount --bind "$root/mnt/$name" "$target"
"""


def why_no_glusterfs() -> str | None:
    """Why there can be no GlusterFS here; None if there can."""
    return None if (ROOT / ".ready").exists() else "no GlusterFS: `make test-filesystems` as root makes it"


class GlusterLab(Lab):
    """The lab with GlusterFS. `caches`: seconds for which clients trust what they know; None: GlusterFS's defaults."""

    def __init__(self, caches: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._caches = caches
        self._server: subprocess.Popen[bytes] | None = None
        self._name = f"client-{self.plan.number}"

    @property
    def _address(self) -> str:
        return self.plan.address(CONTROLLER)

    # -- up and down ------------------------------------------------------------------------------------------------

    def _start_controller(self) -> None:
        super()._start_controller()
        files = self.plan.state_dir / "glusterfs"
        files.mkdir()
        namespaces = ["nsenter", f"--net=/proc/{self._controller_pid}/ns/net", "--"]
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--"]
        argv = [*namespaces, *isolated, "sh", "-c", _SERVER, "sh", str(ROOT), str(files)]
        with open(files / "server.out", "wb") as output:
            self._server = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                start_new_session=True,
            )
        self._wait_for_server()
        self.gluster("volume", "create", VOLUME, f"{self._address}:{BRICK}", "force")
        self.gluster("volume", "set", VOLUME, "network.ping-timeout", str(PING_TIMEOUT_S))
        self.gluster("volume", "start", VOLUME)
        self._mount([])

    def _start_nodes(self, names: Sequence[str]) -> None:
        super()._start_nodes(names)
        for name in names:
            self._mount(self.command([], name, "/"))

    def down(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.plan.shared_dir)], capture_output=True)
        subprocess.run(["umount", "--lazy", str(ROOT / "mnt" / self._name)], capture_output=True)
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
        super().down()
        shutil.rmtree(ROOT / "mnt" / self._name, ignore_errors=True)

    def _mount(self, inside: Sequence[str]) -> None:
        """Mount the volume over the shared directory; `inside`: the command prefix that enters a node."""
        timeouts = [f"--{kind}-timeout={self._caches}" for kind in ("entry", "attribute", "negative")]
        options = [f"--volfile-server={self._address}", f"--volfile-id={VOLUME}"]
        options += timeouts if self._caches is not None else []
        _run([*inside, "sh", "-c", _CLIENT, "sh", str(ROOT), str(self.plan.shared_dir), self._name, *options])

    # -- the server ---------------------------------------------------------------------------------------------------

    def gluster(self, *words: str) -> str:
        """Run the administrator's command on the server."""
        return _run([*self._on_server(), "gluster", "--mode=script", *words])

    def signal_server(self, signum: signal.Signals) -> None:
        """Signal the process that serves the files: SIGKILL is a crash, SIGSTOP a server that cannot be reached."""
        space = namespace_id(self._first_process(), "pid")
        for pid in all_pids():
            if namespace_id(pid, "pid") == space and Path(f"/proc/{pid}/comm").read_text() == "glusterfsd\n":
                os.kill(pid, signum)

    def restart_server(self) -> None:
        """Start the server again after a crash; the clients reconnect."""
        self.gluster("volume", "start", VOLUME, "force")

    def _on_server(self) -> list[str]:
        return ["nsenter", f"--target={self._first_process()}", "--mount", "--net", "--pid", "--", "chroot", str(ROOT)]

    def _first_process(self) -> int:
        """Return the first process of the server's pid namespace, for which `unshare --fork` waits."""
        assert self._server is not None
        return int(Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()[0])

    def _wait_for_server(self) -> None:
        deadline = time.monotonic() + SERVER_DEADLINE_S
        while True:
            try:
                self.gluster("volume", "list")
                return
            except (LabError, IndexError):
                assert self._server is not None
                if time.monotonic() > deadline or self._server.poll() is not None:
                    output = (self.plan.state_dir / "glusterfs" / "server.out").read_text()
                    raise LabError(f"GlusterFS did not start: {output[-500:]}") from None
            time.sleep(0.2)


def _run(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SERVER_DEADLINE_S, cwd="/", env=_environment())
    if done.returncode:
        raise LabError(f"{' '.join(argv[-4:])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Not the test's own: a client outlives the test that mounts it in a restarted node."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
