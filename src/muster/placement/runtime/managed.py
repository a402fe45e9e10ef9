"""`ManagedSubprocess`: the handle of a program in a bundle, which an actor there owns."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from muster.placement.errors import SubprocessError
from muster.placement.planning.cluster import GPU
from muster.placement.runtime.actor import LOST_OWNER_GRACE_S, TAIL_BYTES, SubprocessActor
from muster.placement.runtime.health import Probe
from muster.placement.runtime.owner import this_process
from muster.placement.runtime.shutdown import graceful_stop_actors
from muster.process import Log

NOSET_CUDA_RUNTIME_ENV = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
WAIT_SLICE_S = 2.0  # of one call: Ray does not stop an actor gracefully while a method runs
LOG_READ_TIMEOUT_S = 5.0  # a node that was lost recently is still in Ray's table and does not answer


class ManagedSubprocess:
    """A program in a bundle. If its actor is killed, the program and all its descendants are killed."""

    def __init__(
        self,
        label: str,
        actor: Any,
        run_ref: Any = None,
        facts: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.label = label
        self.name = label if name is None else name  # the actor's
        self.actor = actor
        self._run_ref = run_ref
        self.facts = dict(facts or {})  # from its start: host, pid, log_file, port

    @classmethod
    def spawn(
        cls,
        label: str,
        pg: PlacementGroup,
        bundle_index: int,
        *,
        num_gpus: int,
        command: Sequence[str] | None = None,
        python_args: Sequence[str] | None = None,
        runtime_dir: str | None = None,
        actor_name_prefix: str = "",
        subprocess_env: Mapping[str, str] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        name: str | None = None,
        namespace: str | None = None,
        detached: bool = True,
        lost_owner_grace: float = LOST_OWNER_GRACE_S,
        substitutes: Mapping[str, str] | None = None,
        probe: Probe | None = None,
    ) -> ManagedSubprocess:
        """Start a program in a bundle, in one round trip; raises SubprocessError, and leaves no actor, if that fails.

        `command` is a whole command line, `python_args` are arguments for the actor's interpreter. The program gets the
        actor's environment, `subprocess_env` on top, and the GPUs that Ray gave the actor. It writes to
        `<runtime_dir>/<label>.log`, by default in Ray's log directory. A detached program outlives this driver. `name`
        is the actor's name, by default made of prefix and label.
        """
        if (command is None) == (python_args is None):
            raise ValueError("spawn needs exactly one of 'command' and 'python_args'")
        name = name or (f"{actor_name_prefix}_{label}" if actor_name_prefix else label)
        options = {**_in_bundle(label, pg, bundle_index, num_gpus), "runtime_env": merged_runtime_env(runtime_env)}
        actor = _new_actor(label, name, namespace, detached, options)
        starting = actor.initialize.remote(
            command,
            dict(subprocess_env or {}),
            os.path.join(runtime_dir, f"{label}.log") if runtime_dir else None,
            python_args=python_args,
            lost_owner_grace=lost_owner_grace,
            substitutes=substitutes,
            probe=probe,
            owner=this_process(),
        )
        return cls(label, actor, facts=_started(label, actor, starting), name=name)

    def reacquire(self, actor: Any) -> None:
        """Use an actor handle of another connection, and make this process the owner."""
        self.actor = actor
        self._run_ref = None
        actor.belongs_to.remote(this_process())

    # -- status -----------------------------------------------------------------------------------------------------

    @property
    def run_ref(self) -> Any:
        """A reference that resolves when the program has ended.

        It is requested on first use: until it resolves, SIGTERM to the actor has no effect (Ray waits for running
        methods); everything else that ends an actor still does.
        """
        if self._run_ref is None:
            self._run_ref = self.actor.run.remote()
        return self._run_ref

    def is_alive(self) -> bool:
        """Return whether the program runs."""
        alive: bool = ray.get(self.actor.is_alive.remote())
        return alive

    def pid(self) -> int:
        """Return the process id of the program on its node."""
        pid: int = ray.get(self.actor.pid.remote())
        return pid

    def read_log_tail(self, num_bytes: int = TAIL_BYTES) -> str:
        """Return the last bytes of the program's log."""
        tail: str = ray.get(self.actor.read_log_tail.remote(num_bytes))
        return tail

    def read_log_tail_on_node(self) -> str:
        """Return the end of the log when the actor is gone; empty if the program's node does not answer."""
        if not self.facts.get("node_id") or not self.facts.get("log_file"):
            return ""
        on_node = NodeAffinitySchedulingStrategy(node_id=self.facts["node_id"], soft=False)
        task: Any = ray.remote(num_cpus=0)(_tail).options(scheduling_strategy=on_node)
        try:
            # A late task is not cancelled: ray.cancel of a task that ends at the same time aborts the whole process.
            tail: str = ray.get(task.remote(self.facts["log_file"]), timeout=LOG_READ_TIMEOUT_S)
        except RayError:
            return ""
        return tail

    def status(self) -> dict[str, Any]:
        """Return whether the program runs, its exit, its log file, and if it has ended its last output."""
        status: dict[str, Any] = ray.get(self.actor.status.remote())
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, -n for signal n; GetTimeoutError after `timeout`, RayActorError for a dead actor."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            slice_s = WAIT_SLICE_S if deadline is None else min(WAIT_SLICE_S, max(0.0, deadline - time.monotonic()))
            code: int | None = ray.get(self.actor.wait_for.remote(slice_s))
            if code is not None:
                return code
            if deadline is not None and time.monotonic() >= deadline:
                raise GetTimeoutError(f"{self.label} has not ended within {timeout:g} s")

    def error(self, message: str) -> SubprocessError:
        """Return an error with exit code and last log lines; if the actor is dead, only with the log lines."""
        context = dict(self.facts)
        try:
            context |= ray.get(self.actor.status.remote(), timeout=10)
            context["log_tail"] = context.get("log_tail") or ray.get(self.actor.read_log_tail.remote(), timeout=10)
        except RayError:
            context["log_tail"] = self.read_log_tail_on_node()
        context.pop("node_id", None)  # Ray's id; people use the host
        return SubprocessError(f"{self.label}: {message}", context)

    # -- stopping ---------------------------------------------------------------------------------------------------

    def stop(self, *, timeout_s: float | None = None) -> None:
        """Send TERM, wait, send KILL until no process is left; then kill the actor."""
        type(self).stop_many([self], timeout_s=timeout_s)

    @classmethod
    def stop_many(cls, procs: Sequence[ManagedSubprocess], *, timeout_s: float | None = None) -> None:
        """Stop all in parallel; takes as long as the slowest."""
        graceful_stop_actors([(f"{number}:{p.label}", p.actor) for number, p in enumerate(procs)], timeout_s=timeout_s)


def actor_class(label: str) -> Any:
    """Return the actor's class with the label as its name, which Ray's tools show."""
    return ray.remote(type(label, (SubprocessActor,), {"__module__": "__main__"}))


def merged_runtime_env(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the caller's runtime_env with the variable that keeps Ray from setting CUDA_VISIBLE_DEVICES."""
    given = dict(runtime_env or {})
    return {**given, "env_vars": {**given.get("env_vars", {}), **NOSET_CUDA_RUNTIME_ENV["env_vars"]}}


def _in_bundle(label: str, pg: PlacementGroup, bundle_index: int, num_gpus: int) -> dict[str, Any]:
    """Return the options that put an actor into a bundle with `num_gpus` of its GPUs."""
    has = pg.bundle_specs[bundle_index].get(GPU, 0)
    if num_gpus > has:
        raise ValueError(f"{label}: bundle {bundle_index} has {has:g} GPUs, not {num_gpus}: it would wait forever")
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=pg, placement_group_bundle_index=bundle_index, placement_group_capture_child_tasks=True
    )
    return {"num_cpus": 0, "num_gpus": num_gpus, "scheduling_strategy": strategy}


def _new_actor(label: str, name: str, namespace: str | None, detached: bool, options: Mapping[str, Any]) -> Any:
    lifetime = "detached" if detached else None
    try:
        return actor_class(label).options(name=name, namespace=namespace, lifetime=lifetime, **options).remote()
    except ValueError as error:
        raise SubprocessError(f"{label}: no actor {name!r}: {error}") from error


def _tail(log_file: str) -> str:
    return Log(log_file).tail()


def _started(label: str, actor: Any, starting: Any) -> dict[str, Any]:
    """Return the facts of the start. After a failure the actor is killed, so that its name is free again."""
    try:
        facts: dict[str, Any] = ray.get(starting)
    except BaseException as error:
        ray.kill(actor, no_restart=True)
        if isinstance(error, RayError):
            raise SubprocessError(f"{label}: its actor could not be started: {error}") from error
        raise
    if "error" in facts:
        ray.kill(actor, no_restart=True)
        raise SubprocessError(f"{label}: {facts.pop('error')}", facts)
    return facts
