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
from muster.cli.main import COMMANDS, OLD_NAMES, SECTIONS, cli
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
    units = {"S": "econds", "TIME": "econds", "SIZE": " MB", "CHARACTERS": "characters"}
    measured = {path: units[str(option.metavar)] for path, option in OPTIONS.items() if option.metavar in units}
    assert [path for path, unit in measured.items() if unit not in (OPTIONS[path].help or "")] == []
    decimals = [path for path, option in OPTIONS.items() if isinstance(option.type, click.types.FloatParamType)]
    assert decimals and set(decimals) <= measured.keys()


def test_a_summary_in_the_list_of_commands_is_not_cut_off(invoke: Invoke) -> None:
    out = invoke("--help").out
    assert all(re.search(rf"^  {re.escape(name)} ", out, re.MULTILINE) for name in COMMANDS)


def test_the_summary_of_every_command_is_listed_whole_and_short(invoke: Invoke) -> None:
    out = invoke("--help").out
    summaries = {name: text for commands in SECTIONS.values() for name, text in commands.items()}
    assert [name for name, text in summaries.items() if f"  {name} " not in out or text not in out] == []
    assert "..." not in out.partition("Options:")[2] and all(text.endswith(".") for text in summaries.values())


def test_the_summaries_of_subcommands_are_listed_whole(invoke: Invoke) -> None:
    for group in ("lab", "sandbox", "config", "nodes"):
        listed = invoke(group, "--help").out.partition("Commands:")[2]
        assert listed and "..." not in listed


@pytest.mark.parametrize("name", OLD_NAMES)
def test_an_earlier_name_of_a_command_works_and_is_not_listed(name: str, invoke: Invoke) -> None:
    assert invoke(name, "--help").out.startswith(f"Usage: muster {name} ")
    assert f"  {name} " not in invoke("--help").out and name not in COMMANDS


def test_cancel_is_another_name_of_stop() -> None:
    assert ALL["muster cancel"] is ALL["muster stop"]


def test_an_unknown_command_is_refused(invoke: Invoke) -> None:
    done = invoke("statsu")
    assert done.code == 2 and "No such command 'statsu'" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stat"], "No such command 'stat'. Did you mean status? (see `muster --help`)"),
        (["lab", "upp"], "No such command 'upp'. Did you mean up? (see `muster lab --help`)"),
        (["qqq"], "No such command 'qqq'. (see `muster --help`)"),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(words: list[str], told: str, invoke: Invoke) -> None:
    assert invoke(*words).err == f"muster: error: {told}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_both_spellings_of_help_work(flag: str, invoke: Invoke) -> None:
    assert invoke(flag).out.startswith("Usage: muster ")


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_printed(flag: str, invoke: Invoke) -> None:
    assert invoke(flag).out == f"muster, version {muster.__version__}\n"


def imported_by(command: str) -> set[str]:
    """Return the modules that a new process has imported after `muster COMMAND --help`."""
    code = f"import sys; from muster.cli.main import cli; cli(['{command}', '--help'], standalone_mode=False);"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_command_imports_no_other_command() -> None:
    imported = {name.removeprefix("muster.cli.") for name in imported_by("runs") if name.startswith("muster.cli.")}
    assert "runs" in imported and not imported & (COMMANDS.keys() - {"runs"})


@pytest.mark.parametrize("command", ["status", "logs", "stop", "runs"])
def test_a_command_that_reads_no_job_does_not_import_the_model_of_jobs(command: str) -> None:
    assert not imported_by(command) & {"pydantic", "yaml", "muster.spec.model", "muster.sandbox"}
