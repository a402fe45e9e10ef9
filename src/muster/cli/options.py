"""The flags of `muster run`, generated from the job spec: one per field; only flags that were given are passed on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from muster.errors import SpecError
from muster.spec.errors import show
from muster.spec.flags import Flag, long_flag
from muster.spec.layers import ENTRY_FIELDS
from muster.spec.load import PROFILE
from muster.spec.model import FLAGS, JobSpec

R = TypeVar("R")

EXAMPLES = """\b
Examples:
  muster run -N 4 -- python train.py --lr 3e-4
  muster run -N 16 -p gpu --gpus-per-node 8 -t 4:00:00 --sbatch mail-type=END -- python train.py
  muster run -f job.yaml --nodes 2          (flags win over the job file)
"""

_BARE = {"--exclusive": "true"}
"""Flags whose value is optional and only accepted after `=`, as in sbatch, each with its value when none is given."""

_REPEATED = (*ENTRY_FIELDS, "ray_start_arg")


class GroupedOption(click.Option):
    """An option with the heading under which `--help` lists it."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        # An optional value follows its flag without a space: --exclusive[=user].
        return (record[0].replace(" [=", "[="), record[1]) if record else None


_COMMON = """
file profile name backend nodes cpus_per_node gpus_per_node procs_per_node ray python setup env workdir runs_dir
container_image container_mounts partition account time sbatch requeue_on spares on_node_loss stall_timeout
"""
COMMON = frozenset(_COMMON.split())
"""Options of a job that the short `--help` shows."""

_SHOWS_ALL = "muster.help_all"


class JobCommand(click.Command):
    """A command that ends in COMMAND: options are parsed up to the first other word, or up to `--`.

    `--help` shows the most used options of a job, those in `common`, `--help-all` all of them.
    """

    common = COMMON

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {
            **(kwargs.get("context_settings") or {}),
            "allow_interspersed_args": False,
        }
        kwargs.setdefault("epilog", EXAMPLES)
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spell_out_bare(args, _BARE, _taking_values(self.get_params(ctx))))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        hidden = sum(isinstance(param, click.Option) and not self._is_common(param) for param in params)
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_help_all,
            help=f"Show also the other {hidden} options, and exit.",
        )
        return [*params, help_all]

    def _is_common(self, parameter: click.Parameter) -> bool:
        """Return whether the short help shows the option: one that only some commands have, or a common one of jobs."""
        return parameter.name not in FLAGS or parameter.name in self.common

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        # Options without a group, such as --help, come last.
        for option in sorted(options, key=lambda option: not isinstance(option, GroupedOption)):
            if not (self._is_common(option) or ctx.meta.get(_SHOWS_ALL)):
                continue
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(option, "group", "Other"), []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _print_help_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[_SHOWS_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def job_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add all flags of a job to a command, which receives `file` and the `flags` that were given, --profile included.

    For commands with `cls=JobCommand`; pass both on to `load_job`.
    """

    @functools.wraps(function)
    def with_job(**params: Any) -> R:
        context = click.get_current_context()
        job = {name: params.pop(name) for name, flag in FLAGS.items() if not flag.file_only}
        chosen = {} if (profile := params.pop(PROFILE)) is None else {PROFILE: profile}
        return function(flags={**chosen, **given_flags(context, job)}, **params)

    for decorate in reversed(list(_parameters())):
        decorate(with_job)
    return with_job


def given_flags(context: click.Context, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that the user gave, by field; a flag at its default must not override the job file."""
    given: dict[str, Any] = {}
    for name, value in params.items():
        if context.get_parameter_source(name) in (ParameterSource.DEFAULT, None) or value == ():
            continue
        if name in ENTRY_FIELDS:
            given[name] = dict(_entry(name, text) for text in value)
        else:
            given[name] = list(value) if isinstance(value, tuple) else value
    return given


def _entry(field: str, text: str) -> tuple[str, str | None]:
    """Split NAME=VALUE; an sbatch option without `=` takes no value."""
    key, equals, value = text.partition("=")
    if equals:
        return key, value
    if field == "sbatch":
        return key, None
    raise SpecError([f"{long_flag(field)}: {show(text)} is not valid; allowed: {FLAGS[field].allowed}"])


def _parameters() -> Iterator[Callable[[Callable[..., R]], Callable[..., R]]]:
    yield click.option(
        "file",
        "-f",
        "--file",
        type=click.Path(path_type=Path),
        metavar="JOB.YAML",
        help="Job file with fields named as these flags; flags win.",
        cls=GroupedOption,
        group="Job",
    )
    yield click.option(
        PROFILE,
        "--profile",
        metavar="NAME",
        help="Profile in the site's or the user's settings (see `muster config show`).",
        cls=GroupedOption,
        group="Job",
    )
    for name, flag in FLAGS.items():
        if flag.file_only:
            continue
        if flag.argument:
            yield click.argument(name, nargs=-1, type=click.UNPROCESSED, metavar=f"[[--] {flag.metavar}...]")
        else:
            yield _option(name, flag)


def _option(name: str, flag: Flag) -> Callable[[Callable[..., R]], Callable[..., R]]:
    info = JobSpec.model_fields[name]
    spelt = [flag.short] if flag.short else []
    spelt += [f"{long_flag(name)}/{long_flag('no-' + name)}"] if info.annotation is bool else [long_flag(name)]
    spelt += [long_flag(alias) for alias in flag.aliases]
    shown: dict[str, Any] = {
        "help": flag.help + _default(info.default),
        "cls": GroupedOption,
        "group": flag.group,
    }
    if info.annotation is not bool:
        # Pass the text on unchanged: only the model validates, so that error messages are uniform.
        shown |= {"type": str, "metavar": flag.metavar, "multiple": name in _REPEATED}
    return click.option(name, *spelt, **shown)


def _default(value: object) -> str:
    if isinstance(value, float):
        return f"  [default: {value:g}s]"
    if isinstance(value, int) and value >= 1 << 20:
        return f"  [default: {value >> 30}G]" if value % (1 << 30) == 0 else f"  [default: {value >> 20}M]"
    return f"  [default: {value}]" if isinstance(value, (str, int)) and not isinstance(value, bool) else ""


def _taking_values(params: Sequence[click.Parameter]) -> set[str]:
    """Return the spellings that consume the word after them."""
    options = [param for param in params if isinstance(param, click.Option)]
    return {
        spelling
        for option in options
        if not option.is_flag and not option.count
        for spelling in option.opts
        if spelling not in _BARE
    }


def spell_out_bare(args: Sequence[str], bare: Mapping[str, str], taking_values: set[str]) -> list[str]:
    """Rewrite the option `--exclusive` as `--exclusive=true`: click would use the next word as its value."""
    spelt: list[str] = []
    rest = iter(args)
    for word in rest:
        spelt.append(f"{word}={bare[word]}" if word in bare else word)
        if word == "--" or not word.startswith("-") or word == "-":
            break
        if _wants_next(word, taking_values):
            spelt.extend([value for value in [next(rest, None)] if value is not None])
    return [*spelt, *rest]


def _wants_next(word: str, taking_values: set[str]) -> bool:
    """Return whether the next word is this option's value: for `--nodes` and `-N`, not for `--nodes=2` or `-N2`."""
    if word.startswith("--"):
        return word in taking_values
    first = next((at for at, letter in enumerate(word) if at and f"-{letter}" in taking_values), None)
    return first == len(word) - 1
