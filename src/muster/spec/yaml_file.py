"""Read a job file or a settings file: YAML in which every scalar stays text as written.

YAML 1.1 turns `1:30:00` into 5400, `no` into false, `0.10` into 0.1 and `007` into 7, which would change a time limit,
an account or a word of the command. The model converts numbers and booleans instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from muster.errors import SpecError
from muster.spec.errors import show

_MAX_BYTES = 1 << 20  # a job file has about a page; a larger file is the wrong one
_SCRIPT_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
_SHEBANG = re.compile(rb"#!.*\b(ba|da|k|z)?sh\b")
_EXAMPLE = "write fields, as in `nodes: 2`"


class _TextLoader(yaml.SafeLoader):
    """A safe loader that resolves only null and `<<`, keeps all other scalars as text, and refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in seen:
                    first = seen[key.value]
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is given twice, first in line {first}", key.start_mark
                    )
                seen[key.value] = line
        return super().construct_mapping(node, deep)


_KEPT_TAGS = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_TextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class FileFields(dict[str, Any]):
    """The fields of a file, with the line of each key, by its path: `nodes`, `env.A`, `groups.0.nodes`."""

    def __init__(self, fields: Mapping[str, Any], lines: Mapping[str, int]) -> None:
        super().__init__(fields)
        self.lines = dict(lines)


def read_job_file(path: Path) -> FileFields:
    """Return the fields of the job file; raise SpecError with file, line and column of a mistake."""
    content, lines = _read(path, "job file")
    if content is None:
        raise SpecError([f"{path}: is empty; {_EXAMPLE}"])
    return FileFields(_mapping(path, content), lines)


def read_settings_file(path: Path) -> FileFields | None:
    """Return the fields of the settings file, which may be empty; None if it does not exist."""
    if not os.path.lexists(path):
        return None
    content, lines = _read(path, "settings file")
    return FileFields(_mapping(path, content or {}), lines)


def _read(path: Path, kind: str) -> tuple[Any, dict[str, int]]:
    """Return the content of the file and the lines of its keys."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except IsADirectoryError:
        raise SpecError([f"{path}: is a directory, not a {kind}"]) from None
    except OSError as error:
        raise SpecError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    except ValueError as error:  # a NUL byte in the name
        raise SpecError([f"{str(path)!r}: cannot be read: {error}"]) from None
    if len(content) > _MAX_BYTES:
        raise SpecError([f"{path}: is larger than 1 MiB and cannot be a {kind}"])
    if path.suffix in _SCRIPT_SUFFIXES or _SHEBANG.match(content):
        raise SpecError(
            [
                f"{path}: is a shell script, not a {kind}; to use Muster inside your own batch script, see "
                "docs/how-to/keep-your-sbatch.md"
            ]
        )
    return _parse(path, content, kind)


def _parse(path: Path, content: bytes, kind: str) -> tuple[Any, dict[str, int]]:
    try:
        loader = _TextLoader(content)
        node = loader.get_single_node()
        return (None, {}) if node is None else (loader.construct_document(node), dict(_key_lines(node, set())))
    except yaml.reader.ReaderError as error:
        raise SpecError([f"{path}: is not text: {error.reason} at position {error.position}"]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise SpecError([f"{path}{place}: malformed YAML: {what}"]) from None
    except RecursionError:
        raise SpecError([f"{path}: is nested too deeply to be a {kind}"]) from None


def _key_lines(node: yaml.Node, seen: set[int], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the paths of all keys and items with their lines, from 1. A node with an anchor is visited only once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        parts = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(str(number), value, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, start, value in parts:
        yield prefix + name, start.start_mark.line + 1
        yield from _key_lines(value, seen, f"{prefix}{name}.")


def _mapping(path: Path, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else f"only {show(content)}"
        raise SpecError([f"{path}: holds {kind} instead of fields; {_EXAMPLE}"])
    return {str(key): value for key, value in content.items()}
