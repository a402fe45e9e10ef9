"""Define the endpoint of a service: one URL for all its instances (docs/how-to/endpoints.md)."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from muster.spec import validators
from muster.spec.types import Deadline

SUFFIX = "-endpoint"  # of the service that is the endpoint of another one; as in agent.services.endpoint


def url_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("is not an absolute path")
    return validators.no_control(value)


def _header_or_cookie(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", value, re.ASCII):
        raise ValueError("is not a name of letters, digits, - and _")
    return value


HeaderName = Annotated[str, AfterValidator(_header_or_cookie), AfterValidator(str.lower)]
CookieName = Annotated[str, AfterValidator(_header_or_cookie)]


class EndpointOptions(BaseModel):
    """How the proxies of an endpoint check and choose replicas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    health: Annotated[str, AfterValidator(url_path)] | None = None
    interval: Deadline = 2.0
    sticky_header: HeaderName | None = None
    sticky_cookie: CookieName | None = None
    wait: Deadline = 30.0

    @model_validator(mode="after")
    def _one_kind_of_stickiness(self) -> EndpointOptions:
        if self.sticky_header is not None and self.sticky_cookie is not None:
            raise ValueError("has sticky_header and sticky_cookie; remove one of them")
        return self


def _options(value: Any) -> Any:
    """Accept `endpoint: true`, which is text in a job file."""
    if isinstance(value, (bool, str)):
        known: dict[str, Any] = {"true": {}, "yes": {}, "false": None, "no": None}
        if str(value).lower() not in known:
            raise ValueError("is not true, or options as in {health: /health}")
        return known[str(value).lower()]
    return value


EndpointField = Annotated[EndpointOptions | None, BeforeValidator(_options)]
