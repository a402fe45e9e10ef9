"""The page of the Python API, from the public names of the packages, their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from importlib import import_module
from typing import Any

from pydantic import BaseModel
from tests.docs.reference.markdown import code, heading

PACKAGES = {
    "muster": "Jobs and runs, and helpers for drivers.",
    "muster.placement": "Programs inside a Ray cluster ([reference](placement.md)).",
    "muster.sandbox": "Clients of the sandbox ([reference](sandbox.md)).",
    "muster.process": "Ownership of processes ([explanation](../explanation/process-ownership.md)).",
    "muster.lab": "A Slurm lab ([how-to](../how-to/slurm-lab.md)).",
}


def public_names(package: str) -> list[str]:
    return sorted(import_module(package).__all__)


def _documentation(item: object) -> str:
    """Return the first paragraph of a docstring."""
    text = inspect.getdoc(item) or ""
    return " ".join(re.split(r"\n\s*\n", text)[0].split()).replace("<", "&lt;")


def _signature(name: str, item: Any) -> str:
    """Return name and parameters; defaults that differ from run to run, such as functions, are left out."""
    try:
        parameters = inspect.signature(item)
    except (TypeError, ValueError):
        return name
    shown = re.sub(r" = (<.*? at 0x[0-9a-f]+>|<[^<>]*>|PosixPath\([^)]*\))", " = ...", str(parameters))
    shown = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", shown)
    unquoted = re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)  # annotations are texts in these modules
    return f"{name}{unquoted}"


def methods(item: type) -> list[str]:
    """Return a line for each public method and property; raise ValueError for one without a docstring."""
    lines = []
    for name, member in vars(item).items():
        inner = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            shown = name
        elif inspect.isfunction(inner):
            shown = _signature(name, inner)
        else:
            continue
        if not (documentation := _documentation(member)):
            raise ValueError(f"{item.__name__}.{name} is public and has no docstring")
        lines.append(f"- {code(shown)}: {documentation}")
    return lines


def _entry(package: str, name: str) -> str:
    item = getattr(import_module(package), name)
    if not (inspect.isclass(item) or inspect.isroutine(item)):
        return f"### {name}\n\nA constant: {code(repr(item))}."
    model = inspect.isclass(item) and issubclass(item, BaseModel)
    plain = inspect.isclass(item) and issubclass(item, (Enum, Exception))
    shown = f"{name}(**fields)" if model else name if plain else _signature(name, item)
    parts = [f"### {name}", f"```text\n{shown}\n```", _documentation(item)]
    if inspect.isclass(item) and not plain:
        parts.append("\n".join(methods(item)))
    if inspect.isclass(item) and issubclass(item, Enum):
        parts.append(f"Values: {', '.join(code(str(one.value)) for one in item)}.")
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """Return the text of the page."""
    sections = [
        "\n\n".join([f"## {package}", text, *(_entry(package, name) for name in public_names(package))])
        for package, text in PACKAGES.items()
    ]
    introduction = "Names that are not listed here are internal and may change."
    return "\n".join([heading("Python API", introduction), *(f"{one}\n" for one in sections)])
