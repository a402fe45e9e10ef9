"""The text exposition format of Prometheus. Standard library only, Python >= 3.9: it is sent to nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Sample = tuple[Mapping[str, str], float]  # labels, value


def family(name: str, kind: str, samples: Iterable[Sample], description: str = "") -> list[str]:
    """Return the lines of a metric; `kind` is counter, gauge or histogram.

    >>> family("jobs", "gauge", [({"state": "idle"}, 2)], "Jobs by state.")
    ['# HELP jobs Jobs by state.', '# TYPE jobs gauge', 'jobs{state="idle"} 2']
    """
    described = [f"# HELP {name} {description}"] if description else []
    return [*described, f"# TYPE {name} {kind}", *(sample(name, labels, value) for labels, value in samples)]


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return one line; the labels keep their order."""
    named = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{named}}} {_number(value)}" if named else f"{name} {_number(value)}"


def text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
