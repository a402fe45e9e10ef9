"""The `muster` command: every command is found, and its help describes it and each of its options."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from tests.cli.invocation import Invoke

import muster
from muster.cli.main import COMMANDS, cli
from muster.spec.model import FLAGS

OPTIONS_OF_A_JOB = {*FLAGS, "file", "profile"}  # tests/cli/test_options.py and tests/spec check these


def commands(command: click.Command, path: str = "muster") -> Iterator[tuple[str, click.Command]]:
    """Yield the command and all its subcommands with their paths."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None, f"{path} {name}"
            yield from commands(subcommand, f"{path} {name}")


ALL = dict(commands(cli))
OPTIONS = {
    f"{path} {option.opts[-1]}": option
    for path, command in ALL.items()
    for option in command.params
    if isinstance(option, click.Option) and not option.hidden and option.name not in OPTIONS_OF_A_JOB
}


def needs_default(option: click.Option) -> bool:
    """Whether an option has a value that the user may leave out; one that selects what is printed has no default."""
    selects = (option.help or "").startswith(("Print ", "With --"))
    return not (option.is_flag or option.required or option.multiple or selects)


def test_the_first_paragraph_of_every_help_is_a_sentence() -> None:
    texts = {path: (command.help or "").partition("\n\n")[0].rstrip() for path, command in ALL.items()}
    assert len(texts) > 35
    assert [path for path, text in texts.items() if not re.fullmatch(r'[A-Z]\w+,? .*\."?\.?', text, re.DOTALL)] == []


def test_help_is_printed_for_every_command(invoke: Invoke) -> None:
    for path in ALL:
        done = invoke(*path.split()[1:], "--help")
        assert (done.code, done.err) == (0, "") and done.out.startswith(f"Usage: {path} "), path


def test_the_help_of_every_option_is_a_sentence() -> None:
    assert len(OPTIONS) > 90
    assert [path for path, option in OPTIONS.items() if not re.match(r"[A-Z].*\.$", option.help or "")] == []


def test_the_help_of_every_optional_value_names_its_default() -> None:
    named = {path: option.show_default or "Default: " in (option.help or "") for path, option in OPTIONS.items()}
    assert [path for path, option in OPTIONS.items() if needs_default(option) and not named[path]] == []


def test_the_help_of_every_measured_value_names_its_unit() -> None:
    units = {"S": "econds", "SECONDS": "econds", "MB": " MB", "CHARACTERS": "characters"}
    measured = {path: units[str(option.metavar)] for path, option in OPTIONS.items() if option.metavar in units}
    assert [path for path, unit in measured.items() if unit not in (OPTIONS[path].help or "")] == []
    decimals = [path for path, option in OPTIONS.items() if isinstance(option.type, click.types.FloatParamType)]
    assert decimals and set(decimals) <= measured.keys()


def test_a_summary_in_the_list_of_commands_is_not_cut_off(invoke: Invoke) -> None:
    out = invoke("--help").out
    assert all(re.search(rf"^  {re.escape(name)} ", out, re.MULTILINE) for name in COMMANDS)


def test_cancel_is_another_name_of_stop() -> None:
    assert ALL["muster cancel"] is ALL["muster stop"]


def test_an_unknown_command_is_refused(invoke: Invoke) -> None:
    done = invoke("statsu")
    assert done.code == 2 and "No such command 'statsu'" in done.err


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_both_spellings_of_help_work(flag: str, invoke: Invoke) -> None:
    assert invoke(flag).out.startswith("Usage: muster ")


def test_the_version_is_printed(invoke: Invoke) -> None:
    assert invoke("--version").out == f"muster, version {muster.__version__}\n"


def test_a_command_imports_no_other_command() -> None:
    code = "import sys; from muster.cli.main import cli; cli(['runs', '--help'], standalone_mode=False);"
    code += "print([name for name in sys.modules if name.startswith('muster.cli.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(re.findall(r"muster\.cli\.(\w+)", done.stdout.splitlines()[-1]))
    assert "runs" in imported and not imported & (COMMANDS.keys() - {"runs"})
