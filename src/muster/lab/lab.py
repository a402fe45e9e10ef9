"""A Slurm cluster on this machine: start it, run commands in it, inject and repair faults, remove it."""

from __future__ import annotations

import dataclasses
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from muster.lab import cgroup, leftovers, machine, network, releases, requirements, slurm, state, users
from muster.lab.errors import LabError
from muster.lab.plan import CONTROLLER, LabPlan, chosen_state_dir
from muster.lab.process import ProcessId, kill_all

CONTROLLER_DEADLINE_S = 120.0
UP_DEADLINE_S = 180.0
HEAL_DEADLINE_S = 180.0


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """A node's processes and link on this host, and its state in Slurm (such as `idle` or `down*`)."""

    name: str
    address: str
    pid: int | None
    alive: bool
    link_up: bool
    slurm_state: str


@dataclasses.dataclass(frozen=True)
class LabStatus:
    """A lab and its nodes."""

    state_dir: str
    shared: tuple[str, ...]
    proctrack: str
    slurm_version: str
    controller_alive: bool
    controller_answers: bool
    nodes: tuple[NodeStatus, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Lab:
    """A Slurm cluster of up to 64 nodes on this machine; as a context manager it is up inside the block."""

    def __init__(
        self,
        nodes: int = 4,
        proctrack: str = "cgroup",
        state_dir: str | os.PathLike[str] | None = None,
        shared: Iterable[str | os.PathLike[str]] = (),
        **options: Any,
    ) -> None:
        """`shared` directories below /tmp are visible on all nodes.

        Further options are the fields of LabPlan: slurmd_timeout, kill_wait, cpus, memory_mb, gpus, extra_conf, ipv6,
        extra_networks, dead_interface, debian_hosts, topology, slurm_prefix (from `releases.provide`); and `users`,
        each as NAME or NAME:UID.
        """
        directories = tuple(Path(directory).resolve() for directory in shared)
        chosen = chosen_state_dir(state_dir)
        if options.get("users"):
            options["users"] = users.parse(options["users"], pwd.getpwall())
            options["closed"] = _closed_dirs([*_python_dirs(), chosen, *directories], options["users"])
        self.plan = LabPlan(nodes=nodes, proctrack=proctrack, state_dir=chosen, shared=directories, **options)
        self._machines: dict[str, ProcessId] = {}

    @classmethod
    def attach(cls, state_dir: str | os.PathLike[str] | None = None) -> Lab:
        """Return the lab that is up, or partly up, in the state directory; raise LabError if there is none."""
        directory = chosen_state_dir(state_dir)
        found = state.load(directory)
        if found is None:
            raise LabError(f"no lab is up in {directory}; `muster lab up` starts one")
        lab = cls.__new__(cls)
        lab.plan, lab._machines = found
        return lab

    @classmethod
    def for_cleanup(cls, state_dir: str | os.PathLike[str] | None = None) -> Lab:
        """Return the lab in the state directory for `down`, even if its state file is lost."""
        found = state.load(chosen_state_dir(state_dir))
        return cls.attach(state_dir) if found else cls(nodes=1, state_dir=state_dir)

    @staticmethod
    def leftovers(state_dir: str | os.PathLike[str] | None = None) -> list[str]:
        """Return what a lab left on this machine, a line for each object; empty when clean."""
        return leftovers.find(LabPlan(nodes=1, state_dir=chosen_state_dir(state_dir)))

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # up and down

    def up(self) -> None:
        """Start everything and wait until Slurm can use all nodes; on failure, clean up and raise."""
        requirements.check(self.plan)
        for directory in self.plan.shared:
            if not directory.is_dir():
                raise LabError(f"shared directory {directory} does not exist")
        state.check_unclaimed(self.plan)
        network.check_free(self.plan)
        state.claim(self.plan)
        try:
            state.write_files(self.plan)
            self._start_controller()
            self._start_nodes(self.plan.node_names)
            self._wait_until_usable(self.plan.node_names, UP_DEADLINE_S)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop and remove the lab; harmless if none is up."""
        requirements.check_root()
        kill_all(self._machines.values())
        # A killed `up` may have started machines that it did not record.
        kill_all(leftovers.machine_processes(self.plan))
        kill_all(leftovers.clients(self.plan))
        network.remove(self.plan)
        cgroup.remove(cgroup.root(self.plan))
        self._machines = {}
        if self.plan.state_file.exists():
            shutil.rmtree(self.plan.state_dir)

    def _start_controller(self) -> None:
        def connect(pids: dict[str, int]) -> None:
            network.create_bridges(self.plan, pids[CONTROLLER])

        self._start((CONTROLLER,), connect)
        slurm.wait_for_controller(self.plan, self.env(), self._machines[CONTROLLER], CONTROLLER_DEADLINE_S)

    def _start_nodes(self, names: Sequence[str]) -> None:
        self._start(names, lambda pids: network.connect(self.plan, self._controller_pid, pids))

    def _start(self, names: Sequence[str], connect: machine.Connect) -> None:
        self._machines.update(machine.start(self.plan, names, self._visible(), connect))
        state.save(self.plan, self._machines)

    def _wait_until_usable(self, names: Sequence[str], deadline_s: float) -> None:
        inits = {name: self._machines[name] for name in names}
        slurm.wait_until_usable(self.plan, self.env(), inits, deadline_s)

    def _visible(self) -> list[Path]:
        """Return the directories below private ones that nodes must see: state, shared, Python, Muster, Slurm."""
        wanted = [self.plan.state_dir, *self.plan.shared, *_python_dirs()]
        if self.plan.slurm_prefix:
            wanted.append(self.plan.slurm_prefix)
        return [path for path in wanted if any(private in path.parents for private in self.plan.private_dirs)]

    # use

    def env(self, user: str | None = None) -> dict[str, str]:
        """Return the complete environment of commands on the login node, for subprocess; of a new login for `user`."""
        if user is not None:
            login = self._login(user)
            programs = [str(Path(sys.executable).parent), *requirements.search_path(self.plan).split(os.pathsep)]
            return users.login_environment(login.user, login.home, self.env_additions(), programs)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        return {**inherited, **self.env_additions()}

    def env_additions(self) -> dict[str, str]:
        """Return only the variables that make a shell a login node of the lab."""
        path = os.environ.get("PATH", "").split(os.pathsep)
        python = str(Path(sys.executable).parent)
        before = [python] if python not in path else []
        if self.plan.slurm_prefix:
            before.insert(0, f"{self.plan.slurm_prefix}/bin")
        after = [part for part in requirements.SYSTEM_PATH.split(os.pathsep) if part not in path]
        return {
            "SLURM_CONF": str(self.plan.slurm_conf),
            "MUSTER_LAB_DIR": str(self.plan.state_dir),
            "MUSTER_LAB_SHARED": str(self.plan.shared_dir),
            "PATH": os.pathsep.join([*before, *path, *after]),
        }

    def exec(
        self, argv: Sequence[str], node: str | None = None, user: str | None = None, **subprocess_kwargs: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command on the login node (this machine), or inside a node; like subprocess.run.

        It runs as root, or as a user of the lab in a new login, which begins in the user's home directory unless `cwd`
        is given. `env` is added to the environment.
        """
        return subprocess.run(**self._call(argv, node, user, subprocess_kwargs))

    def popen(
        self, argv: Sequence[str], node: str | None = None, user: str | None = None, **popen_kwargs: Any
    ) -> subprocess.Popen[Any]:
        """Start a command as `exec` does, without waiting for its end."""
        return subprocess.Popen(**self._call(argv, node, user, popen_kwargs))

    def _call(self, argv: Sequence[str], node: str | None, user: str | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        directory = kwargs.get("cwd") or self.start_directory(user)
        env = {**self.env(user), **(kwargs.get("env") or {})}
        return {**kwargs, "args": self.command(argv, node, directory, user), "env": env}

    def command(
        self, argv: Sequence[str], node: str | None, directory: str | os.PathLike[str], user: str | None = None
    ) -> list[str]:
        """Return the command line that runs `argv` on the login node or inside a node, as root or as a user."""
        login = self._login(user) if user is not None else None
        if node is not None:
            return machine.enter_argv(self._alive_machine(node), argv, directory, login)
        return machine.login_argv(self.plan, self._visible(), argv, directory, login) if login else list(argv)

    def start_directory(self, user: str | None) -> str:
        """Return where a command starts unless its caller says so: in the current directory, or in the user's home."""
        return os.getcwd() if user is None else str(self._login(user).home)

    def _login(self, name: str) -> machine.Login:
        user = self.plan.user(name)
        return machine.Login(user, self.plan.home(user))

    def python_problem(self, user: str) -> str | None:
        """Return why a user of the lab cannot run Muster with this Python, or None if that works."""
        tried = self.exec([sys.executable, "-c", "import muster.cli"], user=user, capture_output=True, text=True)
        if tried.returncode == 0:
            return None
        said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        return (
            f"{user} cannot run Muster with {sys.executable}: {said}. "
            "Install Python and Muster where all users can read them, and start the lab with that Python"
        )

    def processes(self, node: str) -> list[int]:
        """Return the pids, as seen from this machine, of all processes of a node."""
        return machine.processes(self._alive_machine(node))

    def status(self) -> LabStatus:
        """Return the state of the lab's machines on this host and in Slurm."""
        self._reload()
        controller = self._machines.get(CONTROLLER)
        alive = controller is not None and controller.alive()
        states = slurm.node_states(self.env()) if alive else None
        links = network.links_up(self._controller_pid, self.plan.node_names) if alive else {}
        return LabStatus(
            state_dir=str(self.plan.state_dir),
            shared=tuple(str(path) for path in (self.plan.shared_dir, *self.plan.shared)),
            proctrack=self.plan.proctrack,
            slurm_version=releases.version_of(self.plan.slurm_prefix) or "unknown",
            controller_alive=alive,
            controller_answers=states is not None,
            nodes=tuple(self._node_status(name, states or {}, links) for name in self.plan.node_names),
        )

    def _node_status(self, name: str, states: dict[str, str], links: dict[str, bool]) -> NodeStatus:
        process = self._machines.get(name)
        alive = process is not None and process.alive()
        return NodeStatus(
            name=name,
            address=self.plan.address(name),
            pid=process.pid if process and alive else None,
            alive=alive,
            link_up=alive and links.get(name, False),
            slurm_state=states.get(name, "unknown"),
        )

    # faults and repair

    def kill_node(self, name: str) -> None:
        """Kill all processes of a node at once, with its namespaces, without a notice to Slurm."""
        self._check_node(name)
        kill_all([self._alive_machine(name)])
        network.drop_links(self.plan, self._controller_pid, name)

    def partition(self, name: str) -> None:
        """Disconnect the node's network; its processes continue."""
        self._check_node(name)
        self._alive_machine(name)
        network.set_links(self.plan, self._controller_pid, name, "down")

    def heal(self, name: str) -> None:
        """Undo kill_node or partition, and wait until Slurm can use the node again."""
        self._check_node(name)
        if self._machine(name).alive():
            network.set_links(self.plan, self._controller_pid, name, "up")
        else:
            self._restart_node(name)
        slurm.resume(self.env(), name)
        self._wait_until_usable([name], HEAL_DEADLINE_S)

    def _restart_node(self, name: str) -> None:
        network.drop_links(self.plan, self._controller_pid, name)
        freezer = cgroup.of_machine(self.plan, name)
        if freezer:
            cgroup.remove(freezer)
        slurm.mark_down(self.env(), name)
        self._start_nodes([name])
        slurm.wait_for_return(self.plan, self.env(), name, self._machines[name], HEAL_DEADLINE_S)

    def _check_node(self, name: str) -> None:
        if name not in self.plan.node_names:
            raise LabError(f"no node {name!r} in the lab; its nodes are {', '.join(self.plan.node_names)}")

    @property
    def _controller_pid(self) -> int:
        return self._alive_machine(CONTROLLER).pid

    def _alive_machine(self, name: str) -> ProcessId:
        process = self._machine(name)
        if not process.alive():
            remedy = f"`muster lab heal {name}` restores it" if name != CONTROLLER else "`muster lab down`, then up"
            raise LabError(f"{name} is dead; {remedy}")
        return process

    def _machine(self, name: str) -> ProcessId:
        self._reload()
        process = self._machines.get(name)
        if process is None:
            running = ", ".join(self._machines) or "none (is it up?)"
            raise LabError(f"no machine {name!r} in the lab; its machines are {running}")
        return process

    def _reload(self) -> None:
        """Reload the init processes: another process (the command line) may have restarted a node."""
        found = state.load(self.plan.state_dir)
        if found is not None:
            self._machines.update(found[1])


def _python_dirs() -> tuple[Path, ...]:
    """Return the directories of this Python and of Muster."""
    return (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[2])


def _closed_dirs(wanted: Iterable[Path], lab_users: Iterable[users.LabUser]) -> tuple[Path, ...]:
    """Return the directories on the way to `wanted` ones that users cannot enter; a user's own are left as they are."""
    owners = frozenset(user.uid for user in lab_users)
    found = (users.closed_directory(path, owners) for path in wanted if path.exists())
    return tuple(sorted({path for path in found if path is not None}))
