"""`muster completion`: print or install the completion of a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

VARIABLE = "_MUSTER_COMPLETE"  # in which the shell asks `muster` for completions: click's name for a program `muster`
SHELLS = ("bash", "zsh", "fish")

# zsh: the code of click needs compdef, which a shell without a framework has only after compinit.
_BEFORE = {"zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"}


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Install it for new shells of this user instead of printing it.")
def completion(shell: str | None, install: bool) -> None:
    """Print the code that completes commands and options in SHELL (default: that of $SHELL), or install it.

    \b
    muster completion --install                 for new shells
    eval "$(muster completion bash)"            for this shell

    Installing writes one file and, for bash and zsh, one line that reads it to ~/.bashrc or ~/.zshrc.
    """
    shell = shell or _login_shell()
    code = completion_code(shell)
    if not install:
        click.echo(code, nl=False)
        return
    try:
        for path in install_completion(shell, code, Path.home()):
            click.echo(f"written: {path}")
    except OSError as error:
        raise click.ClickException(f"{error.filename} cannot be written: {error.strerror}") from error
    click.echo(f"completion works in new shells of {shell}")


def _login_shell() -> str:
    shell = os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        named = f"$SHELL is {shell}" if shell else "$SHELL is not set"
        raise click.UsageError(f"{named}; give a shell: muster completion {'|'.join(SHELLS)}")
    return shell


def completion_code(shell: str) -> str:
    """Return the code that defines the completion of `muster` in this shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    complete = kind(click.Command("muster"), {}, "muster", VARIABLE)
    # Not source(): for bash it starts one to learn its version, and prints a warning about an old one.
    return _BEFORE.get(shell, "") + kind.source_template % complete.source_vars()


def install_completion(shell: str, code: str, home: Path) -> list[Path]:
    """Write the code where the shell finds it, and return the files that were written."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    file = (
        config / "fish" / "completions" / "muster.fish" if shell == "fish" else data / "muster" / f"completion.{shell}"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code, encoding="utf-8")
    if shell == "fish":
        return [file]
    startup = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    line = f'[ ! -r "{file}" ] || . "{file}"  # completion of muster\n'
    before = startup.read_text(encoding="utf-8") if startup.exists() else ""
    if line in before:
        return [file]
    with startup.open("a", encoding="utf-8") as opened:
        opened.write(line if not before or before.endswith("\n") else f"\n{line}")
    return [file, startup]
