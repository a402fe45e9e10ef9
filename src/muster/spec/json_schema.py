"""Describe the job file as a JSON schema, for editors and other programs."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator

from muster.spec import validators
from muster.spec.fields.groups import Group
from muster.spec.fields.services import ALLOWED, Ready, Service
from muster.spec.flags import Flag
from muster.spec.model import FLAGS, JobSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# A scalar may be written as text or as a number: the reader keeps what is written (see `yaml_file`).
_WRITTEN_AS = {
    "integer": ["integer", "string"],
    "number": ["number", "string"],
    "boolean": ["boolean", "string"],
    "string": ["string", "number", "boolean"],
}
_OF_GROUPS = {
    "name": "letters, digits, _, . and -; the name is a label and a Ray resource of the group's nodes",
    "ray": "true or false; whether the group's nodes belong to the job's Ray cluster",
}
_LIMITS = {"ge": "minimum", "le": "maximum"}  # pydantic's names, for types with a function before them
_LISTS_AS_TEXT = (validators.command_words, validators.comma_list, validators.words)


def job_schema() -> dict[str, Any]:
    """Return the schema: every field with its description, also under its aliases and its names with dashes.

    The model refuses more than the schema: conflicts of fields, and values that need context.
    """
    schema = JobSpec.model_json_schema()
    for name, flag in FLAGS.items():
        schema["properties"][name] = _described(schema["properties"][name], flag)
    definitions: dict[type[BaseModel], dict[str, str]] = {Group: _OF_GROUPS, Service: ALLOWED, Ready: {}}
    for model, allowed in definitions.items():
        _describe_model(schema["$defs"][model.__name__], model, allowed)
    schema["$defs"][Service.__name__]["properties"]["endpoint"]["anyOf"].append({"type": "boolean"})
    parts: dict[type[BaseModel], dict[str, Any]] = {JobSpec: schema}
    parts |= {model: schema["$defs"][model.__name__] for model in definitions}
    for model, part in parts.items():
        for name in _lists_as_text(model):
            part["properties"][name] = _or_text(part["properties"][name])
    schema = _as_written(schema)
    schema.pop("required")  # the command may follow on the command line
    schema["patternProperties"] = {
        f"^{other}$": {"$ref": f"#/properties/{name}"} for name, flag in FLAGS.items() for other in _others(name, flag)
    }
    return {"$schema": DIALECT, **schema, "title": "Job of Muster", "description": "A job file of `muster run -f`."}


def _described(field: dict[str, Any], flag: Flag) -> dict[str, Any]:
    return {"description": f"{flag.help} Allowed: {flag.allowed}.", **field}


def _describe_model(part: dict[str, Any], model: type[BaseModel], allowed: dict[str, str]) -> None:
    """Describe the fields of a group, service or readiness check; a group's fields are those of the job."""
    for name in model.model_fields:
        text = f"Allowed: {allowed[name]}." if name in allowed else FLAGS[name].help if name in FLAGS else ""
        if text:
            part["properties"][name] = {"description": text, **part["properties"][name]}


def _lists_as_text(model: type[BaseModel]) -> list[str]:
    """Return the fields whose list may also be written as text."""
    before = {
        name: [extra.func for extra in info.metadata if isinstance(extra, BeforeValidator)]
        for name, info in model.model_fields.items()
    }
    return [name for name, functions in before.items() if name == "command" or set(functions) & set(_LISTS_AS_TEXT)]


def _or_text(field: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {key: field.pop(key) for key in ("description", "default") if key in field}
    return {**about, "anyOf": [*field.pop("anyOf", [field]), {"type": "string"}]}


def _others(name: str, flag: Flag) -> list[str]:
    """Return the other names of a field in a job file."""
    named = {name, *(alias.replace("-", "_") for alias in flag.aliases)}
    return sorted({*named, *(each.replace("_", "-") for each in named)} - {name})


def _as_written(part: Any, properties: bool = False) -> Any:
    """Return the schema with the types that scalars may be written as; titles repeat the names of fields."""
    if isinstance(part, list):
        return [_as_written(each) for each in part]
    if not isinstance(part, dict):
        return part
    found = {key: _as_written(value, key in ("properties", "$defs")) for key, value in part.items()}
    if properties:
        return found
    found.pop("title", None)
    found.update({_LIMITS[key]: found.pop(key) for key in _LIMITS if key in found})
    kind = found.get("type")
    if kind in _WRITTEN_AS and "enum" not in found and "const" not in found:
        found["type"] = _WRITTEN_AS[kind]
    elif kind == "object" and "properties" not in found:
        found["type"] = ["object", "null"]  # all entries may be commented out
    return found
