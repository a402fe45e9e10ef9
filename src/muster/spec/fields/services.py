"""The job's services: programs beside the driver, on every node or on some, that it may wait for (docs/services.md)."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from muster.spec import validators
from muster.spec.fields import sandbox
from muster.spec.flags import Flag
from muster.spec.types import TIME, Count, CountOrZero, Deadline, EnvName, Line, Word, empty_for_none

if TYPE_CHECKING:
    from muster.spec.model import JobSpec

COMMAND = Annotated[list[Word], BeforeValidator(validators.command_words), AfterValidator(validators.runnable)]


def service_name(value: str) -> str:
    """It is a directory and, in capitals, part of the name of a variable."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", value, re.ASCII):
        raise ValueError("is not a name of up to 40 small letters, digits, _ and -, a letter first")
    return value


def variable(name: str) -> str:
    """The name in capitals, as variables have it: MUSTER_SERVICE_CODE_JUDGE for code-judge."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _scope(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _port(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("is not a path that begins with /")
    return validators.no_control(value)


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def _pattern(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*", value, re.ASCII):
        raise ValueError("is not the name of a variable, or the beginning of one with a *")
    return value


PortName = Annotated[str, AfterValidator(service_name)]
Port = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=65535)], BeforeValidator(_port)]


class Ready(BaseModel):
    """How it is seen that a service is ready: in one way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    http: Annotated[str, AfterValidator(_path)] | None = None
    tcp: PortName | None = None
    command: COMMAND | None = None
    file: Line | None = None
    log: Annotated[Line, AfterValidator(_regex)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Ready:
        given = [name for name in Ready.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"has {' and '.join(given) or 'nothing'}; give one of {', '.join(Ready.model_fields)}")
        return self


class Service(BaseModel):
    """One service of the job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: COMMAND | None = None
    kind: Literal["command", "sandbox"] = "command"
    scope: Annotated[Literal["all", "head", "any"] | Count, BeforeValidator(_scope)] = "all"
    env: Annotated[dict[EnvName, Word], BeforeValidator(empty_for_none)] = Field(default_factory=dict)
    env_passthrough: list[Annotated[str, AfterValidator(_pattern)]] | None = None
    ports: Annotated[dict[PortName, Port], BeforeValidator(empty_for_none)] = Field(default_factory=dict)
    ready: Ready | None = None
    gate: bool = True
    deadline: Deadline = 300.0
    restart: Literal["never", "on-failure", "always"] = "on-failure"
    max_restarts: CountOrZero = 3
    container: Line | None = None
    settings: Annotated[dict[str, Any], BeforeValidator(empty_for_none)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees(self) -> Service:
        problem = _sandbox_problem(self) if self.kind == "sandbox" else _command_problem(self)
        if problem is not None:
            raise ValueError(problem)
        if self.kind == "sandbox":
            object.__setattr__(self, "settings", sandbox.settings(self.settings))
        return self


def _command_problem(service: Service) -> str | None:
    if service.command is None:
        return "has no command; write one, or `kind: sandbox`"
    if service.settings:
        return "has settings, which are a sandbox's; add `kind: sandbox`, or give its command what it needs"
    ready = service.ready
    if ready is None:
        return None
    if ready.http is not None and not service.ports:
        return "has ready.http, but no port to ask; add `ports: {http: auto}`"
    if ready.tcp is not None and ready.tcp not in service.ports:
        return f"has ready.tcp: {ready.tcp}, which is none of its ports ({', '.join(service.ports) or 'it has none'})"
    return None


def _sandbox_problem(service: Service) -> str | None:
    given = [name for name in ("command", "ready") if getattr(service, name) is not None]
    if given:
        return f"is a sandbox and cannot have a {given[0]} of its own; leave it out"
    if set(service.ports) - {"http"}:
        return f"has ports {', '.join(service.ports)}; a sandbox has one that can be fixed: http"
    if service.scope not in ("all", "head"):
        return "is a sandbox, whose endpoint is each node's loopback: its scope is all, or head"
    return None


ALLOWED = {
    "command": "a list of words, or a text for bash",
    "kind": "command or sandbox",
    "scope": "all, head, any, or a number of nodes",
    "env": "names and values of variables",
    "env_passthrough": "a list of names of variables; HF_* is every one that begins so",
    "ports": "names with a number or auto, as in {http: auto}",
    "ready": "one of {http: /path}, {tcp: PORT-NAME}, {command: ...}, {file: PATH}, {log: REGEX}",
    "gate": "true or false",
    "deadline": TIME + ", more than 0",
    "restart": "never, on-failure or always",
    "max_restarts": "a whole number, 0 or more",
    "container": "the job's own image; one srun carries one image",
    "settings": "those of a sandbox, as in {workers_max: 64}",
}


def unknown_field(name: str) -> str:
    near = difflib.get_close_matches(name, ALLOWED, n=1)
    hint = f" did you mean {near[0]}?" if near else ""
    return f"is no field of a service;{hint} valid fields: {', '.join(ALLOWED)}"


class ServiceFields(BaseModel):
    """What runs beside the driver."""

    services: Annotated[
        dict[Annotated[str, AfterValidator(service_name)], Service],
        BeforeValidator(empty_for_none),
        Flag(
            "Programs that run beside the driver, on every node or on some; it may wait until they are ready.",
            group="Job",
            allowed="services by name, as in {judge: {command: python judge.py --port {http}, ports: {http: auto}}}",
            file_only=True,
        ),
    ] = Field(default_factory=dict)


def problem(spec: JobSpec) -> str | None:
    """Why these cannot go together; None when they can."""
    twice = [name for name, times in Counter(map(variable, spec.services)).items() if times > 1]
    if twice:
        return f"services: two of them would both be MUSTER_SERVICE_{twice[0]}; give them names that differ in more"
    for name, service in spec.services.items():
        if service.container is not None and service.container != spec.container_image:
            here = f"the job's, {spec.container_image}" if spec.container_image else "none"
            return (
                f"services.{name}.container: one srun carries everything of a job, and so one image ({here}); a service"
                " in another one would take a step of its own on every node. Leave container out, or start the"
                " container runtime in the service's command"
            )
    return scope_problem(spec.services, spec.nodes) if spec.nodes_given else None


def scope_problem(services: Mapping[str, Service], nodes: int) -> str | None:
    """Why so many nodes are too few; None when they are not."""
    for name, service in services.items():
        if isinstance(service.scope, int) and service.scope > nodes:
            return f"services.{name}.scope: {service.scope} nodes are wanted, and the job has {nodes}"
    return None
