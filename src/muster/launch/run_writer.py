"""Write the run directory, with everything that the nodes need, before the job is submitted."""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import sys

from muster.errors import BackendError
from muster.launch.agent_archive import build_archive
from muster.launch.driver_library import build_library
from muster.launch.plan import Prepared
from muster.launch.target import Target
from muster.rundir import RunPaths, private_opener, write_atomic
from muster.rundir.private_files import PRIVATE_DIRECTORY_MODE
from muster.rundir.tokens import derive_endpoint_token, derive_ray_token
from muster.slurm import client
from muster.spec import JobSpec
from muster.spec.fields.groups import resolved
from muster.spec.fields.services import Service, with_endpoints

PRIVATE_SCRIPT_MODE = 0o700

# The fields of a service in job.json, which its owner may share: none that may hold a secret.
_PUBLIC_SERVICE_FIELDS = {"kind", "scope", "group", "ports", "gate", "deadline", "restart", "max_restarts"}
ENDPOINT_TOKEN_VARIABLE = "MUSTER_ENDPOINT_TOKEN"

_archive = functools.lru_cache(maxsize=1)(build_archive)  # all runs of an array have the same archives
_library = functools.lru_cache(maxsize=1)(build_library)


def write_run(prepared: Prepared) -> None:
    """Write the run directory; on an error, remove it. Raises BackendError if the runs directory is not writable."""
    run, spec = prepared.run, prepared.spec
    try:
        os.makedirs(os.path.dirname(run.root), exist_ok=True)
        os.mkdir(run.root, PRIVATE_DIRECTORY_MODE)
        os.mkdir(run.output_dir, PRIVATE_DIRECTORY_MODE)
    except OSError as error:
        raise _unwritable(run, error) from error
    try:
        token = secrets.token_hex(32)
        write_atomic(run.token, token)
        write_atomic(run.ray_token, derive_ray_token(token.encode()).decode())
        write_atomic(run.env, json.dumps({**spec.env, **_endpoint_token(spec, token)}))
        if spec.services:
            write_atomic(run.services, json.dumps(_services_record(spec)) + "\n")
        write_atomic(run.job, json.dumps(job_record(prepared)) + "\n")
        write_atomic(run.script, prepared.script, mode=PRIVATE_SCRIPT_MODE)
        python = sys.executable if prepared.container else prepared.python
        kinds = {service.kind for service, _ in with_endpoints(spec.services).values()}
        _write_bytes(run.agent, _archive(python, "sandbox" in kinds, "endpoint" in kinds))
        _write_bytes(run.library, _library(python, "sandbox" in kinds))
    except BaseException as error:
        shutil.rmtree(run.root, ignore_errors=True)
        if isinstance(error, OSError):
            raise _unwritable(run, error) from error
        raise


def _endpoint_token(spec: JobSpec, token: str) -> dict[str, str]:
    """Return the variable of the token of endpoints, for all processes of a job that has one."""
    if all(service.kind != "endpoint" for service, _ in with_endpoints(spec.services).values()):
        return {}
    return {ENDPOINT_TOKEN_VARIABLE: derive_endpoint_token(token.encode())}


def _write_bytes(path: str, content: bytes) -> None:
    with open(path, "wb", opener=private_opener) as file:
        file.write(content)


def _unwritable(run: RunPaths, error: OSError) -> BackendError:
    reason = error.strerror or str(error)
    return BackendError(f"cannot write to the runs directory {os.path.dirname(run.root)}: {reason} (see --runs-dir)")


def _signal_times(spec: JobSpec, target: Target) -> dict[str, float | None]:
    """Return the driver's grace period when Slurm ends the job, at most 60 % of KillWait: the nodes need the rest."""
    if target.backend != "slurm":
        return {"signal_grace": spec.stop_grace, "kill_wait": None}
    kill_wait = client.kill_wait()
    return {"signal_grace": min(spec.stop_grace, 0.6 * kill_wait), "kill_wait": kill_wait}


def job_record(prepared: Prepared) -> dict[str, object]:
    """Return job.json, the resolved job. Of --env it has only the names: the values may be secrets."""
    spec, target = prepared.spec, prepared.target
    cpus = spec.cpus_per_node
    if cpus is None and target.kind == "local":
        cpus = max(1, len(os.sched_getaffinity(0)) // target.nodes)
    with_cpus = spec.model_copy(update={"cpus_per_node": cpus})
    return {
        **spec.model_dump(mode="json"),
        "env": sorted(spec.env),
        "run": prepared.run.run_id,
        "backend": target.backend,
        "python": prepared.python,
        "workdir": prepared.container.workdir if prepared.container else prepared.workdir,
        "container": prepared.container.record() if prepared.container else None,
        "cpus_per_node": cpus,
        **_signal_times(spec, target),
        "groups": [group.model_dump(mode="json") for group in resolved(with_cpus)],
        "services": {
            name: {
                **service.model_dump(mode="json", include=_PUBLIC_SERVICE_FIELDS),
                "env": sorted(service.env),
                **_replicas_of(service, of),
            }
            for name, (service, of) in with_endpoints(spec.services).items()
        },
    }


def _services_record(spec: JobSpec) -> dict[str, object]:
    """Return the services with all fields; only the user may read the file."""
    return {
        name: {
            # Nodes need the options of an endpoint, not where the job file has them.
            **service.model_dump(mode="json", exclude=None if service.kind == "endpoint" else {"endpoint"}),
            **_replicas_of(service, of),
        }
        for name, (service, of) in with_endpoints(spec.services).items()
    }


def _replicas_of(service: Service, of: str | None) -> dict[str, str | None]:
    return {"of": of} if service.kind == "endpoint" else {}
