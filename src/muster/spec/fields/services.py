"""Define the job's services: programs beside the driver, on all or some nodes (docs/explanation/services.md)."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from muster.sandbox.settings import ISOLATION, SandboxSettings
from muster.spec import validators
from muster.spec.fields.endpoints import SUFFIX, EndpointField, EndpointOptions, url_path
from muster.spec.flags import Flag
from muster.spec.types import TIME, Count, CountOrZero, Deadline, EnvName, Line, Word

if TYPE_CHECKING:
    from muster.spec.model import JobSpec

DECIDED_BY_AGENTS = frozenset({"host", "port", "listen", "token", "ready_file", "members_file"})
"""Settings of a sandbox that the agents decide."""

_SANDBOX_TYPES: dict[str, Any] = {
    name: dict[str, str] if name == "env" else kind
    for name, kind in get_type_hints(SandboxSettings).items()
    if name not in DECIDED_BY_AGENTS
}

COMMAND = Annotated[list[Word], BeforeValidator(validators.command_words), AfterValidator(validators.runnable)]


def service_name(value: str) -> str:
    """Check the name of a service: it names a directory and, in capitals, is part of a variable's name."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", value, re.ASCII):
        raise ValueError("is not a name of up to 40 lower-case letters, digits, _ and -, starting with a letter")
    return value


def variable(name: str) -> str:
    """Return the name as in variables: CODE_JUDGE for code-judge (MUSTER_SERVICE_CODE_JUDGE)."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _number_from_text(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def _pattern(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*", value, re.ASCII):
        raise ValueError("is not the name of a variable, or a prefix followed by *")
    return value


PortName = Annotated[str, AfterValidator(service_name)]
Port = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=65535)], BeforeValidator(_number_from_text)]


class Ready(BaseModel):
    """The readiness check of a service: exactly one of the fields is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    http: Annotated[str, AfterValidator(url_path)] | None = None
    tcp: PortName | None = None
    command: COMMAND | None = None
    file: Line | None = None
    log: Annotated[Line, AfterValidator(_regex)] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Ready:
        given = [name for name in Ready.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"has {' and '.join(given) or 'no check'}; give one of {', '.join(Ready.model_fields)}")
        return self


class Service(BaseModel):
    """One service of the job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: COMMAND | None = None
    kind: Literal["command", "sandbox", "endpoint"] = "command"
    scope: Annotated[Literal["all", "head", "any"] | Count, BeforeValidator(_number_from_text)] = "all"
    group: Line | None = None
    env: Annotated[dict[EnvName, Word], BeforeValidator(validators.empty_for_none)] = Field(default_factory=dict)
    env_passthrough: list[Annotated[str, AfterValidator(_pattern)]] | None = None
    ports: Annotated[dict[PortName, Port], BeforeValidator(validators.empty_for_none)] = Field(default_factory=dict)
    ready: Ready | None = None
    gate: bool = True
    deadline: Deadline = 300.0
    restart: Literal["never", "on-failure", "always"] = "on-failure"
    max_restarts: CountOrZero = 3
    container: Line | None = None
    settings: Annotated[dict[str, Any], BeforeValidator(validators.empty_for_none)] = Field(default_factory=dict)
    endpoint: EndpointField = None

    @model_validator(mode="after")
    def _validate_kind(self) -> Service:
        if self.kind == "sandbox":
            _validate_sandbox(self)
            object.__setattr__(self, "settings", sandbox_settings(self.settings))
        elif self.kind == "endpoint":
            _validate_endpoint(self)
        else:
            _validate_command(self)
        return self


def _validate_command(service: Service) -> None:
    if service.command is None:
        raise ValueError("has no command; add one, or set `kind: sandbox`")
    if service.settings:
        raise ValueError("has settings, which only a sandbox has; add `kind: sandbox`, or use arguments of its command")
    ready = service.ready
    if service.endpoint is not None and "http" not in service.ports and (ready is None or ready.http is None):
        raise ValueError("has an endpoint, but no port called http and no ready.http; add `ports: {http: auto}`")
    if ready is None:
        return
    if ready.http is not None and not service.ports:
        raise ValueError("has ready.http, but no port to query; add `ports: {http: auto}`")
    if ready.tcp is not None and ready.tcp not in service.ports:
        ports = ", ".join(service.ports) or "none"
        raise ValueError(f"has ready.tcp: {ready.tcp}, which is not one of its ports ({ports})")


def _validate_sandbox(service: Service) -> None:
    given = [name for name in ("command", "ready", "endpoint") if getattr(service, name) is not None]
    if given:
        raise ValueError(f"is a sandbox, for which {given[0]} cannot be set; remove it")
    if set(service.ports) - {"http"}:
        raise ValueError(f"has ports {', '.join(service.ports)}; the only port of a sandbox that can be set is http")
    if service.group is not None:
        raise ValueError("is a sandbox, which each node of the job reaches on its loopback: remove group")
    if service.scope not in ("all", "head"):
        raise ValueError("is a sandbox, whose endpoint is each node's loopback: its scope must be all or head")


def _validate_endpoint(service: Service) -> None:
    unset = ("command", "ready", "container", "env_passthrough", "group")
    given = [name for name in unset if getattr(service, name) is not None]
    given += [name for name in ("env", "settings") if getattr(service, name)]
    if given:
        raise ValueError(f"is an endpoint, for which {given[0]} cannot be set; remove it")
    if set(service.ports) - {"http"}:
        raise ValueError(f"has ports {', '.join(service.ports)}; the only port of an endpoint is http")
    if service.scope != "all":
        raise ValueError("is an endpoint, which every node has: its scope must be all")


def with_endpoints(services: Mapping[str, Service]) -> dict[str, tuple[Service, str | None]]:
    """Return all services that nodes run, each with the name of the service that it is the endpoint of.

    The endpoint of a service is another service, with a proxy on every node.
    """
    found: dict[str, tuple[Service, str | None]] = {}
    for name, service in services.items():
        found[name] = service, None
        if service.kind != "endpoint" and service.endpoint is not None:
            health = service.endpoint.health or (service.ready.http if service.ready is not None else None)
            options = service.endpoint.model_copy(update={"health": health})
            found[name + SUFFIX] = Service(kind="endpoint", gate=service.gate, endpoint=options), name
        elif service.kind == "endpoint" and service.endpoint is None:
            found[name] = service.model_copy(update={"endpoint": EndpointOptions()}), None
    return found


def sandbox_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the types that the sandbox reads from JSON; the job file has only text.

    Names and types are checked here; the node checks the values.
    """
    return {name: _sandbox_setting(name, value) for name, value in given.items()}


def _sandbox_setting(name: str, value: Any) -> Any:
    if name in DECIDED_BY_AGENTS:
        raise ValueError(f"has {name!r}, which the agents decide; `ports: {{http: ...}}` fixes the port")
    if name not in _SANDBOX_TYPES:
        near = difflib.get_close_matches(name, _SANDBOX_TYPES, n=1)
        hint = f" did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"has {name!r}, which is not a setting of a sandbox;{hint} valid: {', '.join(sorted(_SANDBOX_TYPES))}"
        )
    try:
        found = TypeAdapter(_SANDBOX_TYPES[name]).validate_python(value)
    except ValidationError:
        kind = getattr(_SANDBOX_TYPES[name], "__name__", str(_SANDBOX_TYPES[name]))
        raise ValueError(f"has {name}: {value!r}, which is not of the type {kind}") from None
    if name == "isolation" and found not in ISOLATION:
        raise ValueError(f"has isolation: {found!r}, which is not one of {', '.join(ISOLATION)}")
    return list(found) if isinstance(found, tuple) else found


ALLOWED = {
    "command": "a list of words, or text for bash",
    "kind": "command, sandbox, or endpoint",
    "scope": "all, head, any, or a number of nodes",
    "group": "the name of a group of nodes, to which the scope then applies",
    "env": "names and values of variables",
    "env_passthrough": "a list of names of variables; HF_* matches all that start with HF_",
    "ports": "names with a number or auto, as in {http: auto}",
    "ready": "one of {http: /path}, {tcp: PORT-NAME}, {command: ...}, {file: PATH}, {log: REGEX}",
    "gate": "true or false",
    "deadline": TIME + ", more than 0",
    "restart": "never, on-failure or always",
    "max_restarts": "a whole number, 0 or more",
    "container": "the job's image: all services run in it",
    "settings": "settings of a sandbox, as in {workers_max: 64}",
    "endpoint": "true, or options as in {health: /health, sticky_header: X-Session-Id}",
}


def unknown_field(name: str) -> str:
    """Return the error text for a field that services do not have."""
    near = difflib.get_close_matches(name, ALLOWED, n=1)
    hint = f" did you mean {near[0]}?" if near else ""
    return f"is not a field of a service;{hint} valid fields: {', '.join(ALLOWED)}"


# As in agent.services.templating, which nodes use: agents import nothing from here, and this package nothing from them.
PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z][a-z0-9_-]*)\}")


def unknown_placeholders(services: Mapping[str, Service]) -> Iterator[tuple[str, str]]:
    """Yield the path and a remark for each word in braces that looks like a placeholder and is none.

    It is not an error: programs such as awk have braces in their arguments.
    """
    for name, service in services.items():
        known = [*dict.fromkeys([*service.ports, *(["port"] if service.ports else []), "address", "dir"])]
        texts = {"command": service.command or [], "env": list(service.env.values())}
        for field, words in texts.items():
            for word in dict.fromkeys(found for text in words for found in PLACEHOLDER.findall(text)):
                if word not in known:
                    placeholders = ", ".join(f"{{{each}}}" for each in known)
                    remark = f"{{{word}}} is not a placeholder and stays as it is; placeholders: {placeholders}"
                    yield f"{name}.{field}", remark


class ServiceFields(BaseModel):
    """The services of the job."""

    services: Annotated[
        dict[Annotated[str, AfterValidator(service_name)], Service],
        BeforeValidator(validators.empty_for_none),
        Flag(
            "Programs that run beside the driver on all or some nodes; the driver may wait until they are ready.",
            group="Job",
            allowed="services by name, as in {judge: {command: python judge.py --port {http}, ports: {http: auto}}}",
            file_only=True,
        ),
    ] = Field(default_factory=dict)


def validate_services(spec: JobSpec) -> None:
    """Raise ValueError if two services clash, or one does not fit the job's image or number of nodes."""
    repeated = [name for name, times in Counter(map(variable, spec.services)).items() if times > 1]
    if repeated:
        raise ValueError(f"services: two services would set MUSTER_SERVICE_{repeated[0]}; rename one of them")
    for name, service in spec.services.items():
        if service.endpoint is not None and name + SUFFIX in spec.services:
            raise ValueError(f"services: {name + SUFFIX} is the name of the endpoint of {name}; rename the service")
        if service.container is not None and service.container != spec.container_image:
            image = f"the job's, {spec.container_image}" if spec.container_image else "none"
            raise ValueError(
                f"services.{name}.container: the job's one srun starts everything in one image ({image}); another image"
                " would need a further step on every node. Remove container, or start the container runtime in the"
                " service's command"
            )
    _validate_service_groups(spec)
    if spec.nodes_given:
        validate_scopes(spec.services, spec.nodes)


def _validate_service_groups(spec: JobSpec) -> None:
    sizes = {group.name: group.nodes for group in spec.groups}
    for name, service in spec.services.items():
        if service.group is None:
            continue
        if service.group not in sizes:
            has = f"its groups are {', '.join(sizes)}" if sizes else "it has no groups"
            raise ValueError(f"services.{name}.group: the job has no group {service.group!r}; {has}")
        if isinstance(service.scope, int) and service.scope > sizes[service.group]:
            raise ValueError(
                f"services.{name}.scope: needs {service.scope} nodes, but the group {service.group} has"
                f" {sizes[service.group]}"
            )


def validate_scopes(services: Mapping[str, Service], nodes: int) -> None:
    """Raise ValueError if a service is to run on more nodes than the job has."""
    for name, service in services.items():
        if isinstance(service.scope, int) and service.scope > nodes:
            raise ValueError(f"services.{name}.scope: needs {service.scope} nodes, but the job has {nodes}")
