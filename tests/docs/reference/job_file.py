"""The page of the job file's fields, from the model of the job."""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, fields
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from tests.docs.reference.markdown import code, heading, table

from muster.sandbox import settings
from muster.sandbox.settings import SandboxSettings
from muster.spec.fields.endpoints import EndpointOptions
from muster.spec.fields.groups import Group
from muster.spec.fields.services import DECIDED_BY_AGENTS, Ready, Service
from muster.spec.flags import long_flag
from muster.spec.model import FLAGS, JobSpec

SERVICE_FIELDS = {
    "command": "The program and its arguments, with placeholders for ports; required unless `kind` is another one.",
    "kind": "`command`, `sandbox` for Muster's sandbox, or `endpoint` for replicas that programs publish.",
    "scope": "The nodes: `all`, `head`, `any` (one node) or a number of nodes.",
    "group": "The group of nodes to which `scope` applies. Default: all nodes of the job.",
    "env": "Variables of the service.",
    "env_passthrough": "Names, or prefixes with `*`, of the job's variables to pass on, besides PATH, HOME, LANG and "
    "similar ones. Default: all.",
    "ports": "Ports by name: `auto` for a free one on each node, or a number.",
    "ready": "The readiness check. Default: the first port accepts connections.",
    "gate": "Whether the driver waits for the service.",
    "deadline": "Maximum time until an instance is ready, in seconds or as 5m.",
    "restart": "`never`, `on-failure` or `always`.",
    "max_restarts": "Maximum number of restarts of an instance in a cycle.",
    "container": "The image; only the job's is possible.",
    "settings": "Settings of a sandbox.",
    "endpoint": "`true`, or options: one URL for all instances, on every node.",
}
ENDPOINT_FIELDS = {
    "health": "Path of the health check of a replica. Default: that of `ready.http`, else a connection.",
    "interval": "Time between two checks of a replica by one node, in seconds or as 5s.",
    "sticky_header": "Header whose value keeps requests at the same replica.",
    "sticky_cookie": "Cookie that keeps a client's requests at the same replica.",
    "wait": "Time for which a request waits for an eligible replica.",
}
READY_FIELDS = {
    "http": "Path on the first port that answers with a status below 400.",
    "tcp": "Name of a port that accepts connections.",
    "command": "Command that exits with 0.",
    "file": "File that exists.",
    "log": "Regular expression that a line of the log matches.",
}
GROUP_FIELDS = {
    "name": "Name of the group: a label and a Ray resource of its nodes; required.",
    "nodes": "Number of nodes; required.",
    "cpus_per_node": "Number of CPUs per node.",
    "gpus_per_node": "Number of GPUs per node.",
    "partition": "Partition.",
    "constraint": "Features that every node must have.",
    "gres": "Generic resources per node.",
    "mem": "Memory per node.",
    "nodelist": "Hosts to include.",
    "exclude": "Hosts to exclude.",
    "ray_resource": "Ray resources of each node, added to the job's.",
    "ray_label": "Ray labels of each node, added to the job's.",
    "ray": "Whether the nodes belong to the job's Ray cluster; the first group always does. Default: as the job.",
}


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return ""
    value = info.get_default(call_default_factory=True)
    if value is None or value in ((), [], {}, ""):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def _nested(model: type[BaseModel], meanings: dict[str, str]) -> str:
    assert list(meanings) == list(model.model_fields), f"describe exactly the fields of {model.__name__}"
    rows = [[code(name), meanings[name], _default(info)] for name, info in model.model_fields.items()]
    return table(("field", "meaning", "default"), rows)


def sandbox_comments() -> dict[str, str]:
    """Return the remark beside each setting of a sandbox in its definition."""
    lines, remarks = inspect.getsource(settings).splitlines(), {}
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == SandboxSettings.__name__:
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    remarks[one.target.id] = lines[one.lineno - 1].partition("  # ")[2]
    return remarks


def _sandbox() -> str:
    remarks, rows = sandbox_comments(), []
    for one in fields(SandboxSettings):
        if one.name not in DECIDED_BY_AGENTS:
            constant: Any = "" if one.default is MISSING or one.name == "python" else one.default
            shown = "" if constant in ("", (), None) else code(str(constant))
            rows.append([code(one.name), remarks[one.name], shown])
    return table(("setting", "remark", "default"), rows)


def _rows(group: str) -> list[list[str]]:
    rows = []
    for field, flag in FLAGS.items():
        if flag.group == group:
            option = "" if flag.file_only else "words after the options" if flag.argument else code(long_flag(field))
            sbatch = f" sbatch: `--{flag.sbatch}`." if flag.sbatch else ""
            aliases = f" Also: {', '.join(code(alias) for alias in flag.aliases)}." if flag.aliases else ""
            default = _default(JobSpec.model_fields[field])
            rows.append([code(field), flag.help + sbatch + aliases, flag.allowed, default, option])
    return rows


def page() -> str:
    """Return the text of the page."""
    introduction = (
        "Fields of a job file (`muster run -f job.yaml`), of settings files (all but `command` and `name`), of "
        "`MUSTER_<FIELD>` variables and of `muster.JobSpec`. Unknown fields are refused."
    )
    header = ("field", "meaning", "allowed", "default", "option")
    groups = list(dict.fromkeys(flag.group for flag in FLAGS.values()))
    sections = [f"## {group}\n\n{table(header, _rows(group))}" for group in groups]
    sections.append(f"## A service\n\nAn entry of `services`, by name.\n\n{_nested(Service, SERVICE_FIELDS)}")
    sections.append(
        f"## A readiness check\n\n`ready` of a service: exactly one field.\n\n{_nested(Ready, READY_FIELDS)}"
    )
    endpoint = "`endpoint` of a service. [The guide](../how-to/endpoints.md) explains them."
    sections.append(f"## Options of an endpoint\n\n{endpoint}\n\n{_nested(EndpointOptions, ENDPOINT_FIELDS)}")
    sandbox = "`settings` of a service of `kind: sandbox`. Sizes are in MB, times in seconds."
    sections.append(f"## Settings of a sandbox\n\n{sandbox}\n\n{_sandbox()}")
    group = "An entry of `groups`. A field that is not set has the job's value."
    sections.append(f"## A group of nodes\n\n{group}\n\n{_nested(Group, GROUP_FIELDS)}")
    return "\n".join([heading("Job file", introduction), *(f"{one}\n" for one in sections)])
