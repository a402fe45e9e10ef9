"""`muster validate`: check job files."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.json_output import json_option, print_json
from muster.errors import SpecError
from muster.spec.load import job_file_problems


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@json_option("Print the problems of each file as one JSON list.")
def validate(files: tuple[Path, ...], as_json: bool) -> int:
    """Check job files, and print each problem with file and line.

    Only the files are checked: settings are not read, and the command may follow on the command line of `muster run`.
    Partitions, sizes and paths, which depend on the cluster, are checked by `muster run --dry-run -f FILE`.

    The exit code is 0 when all files are valid, else 2.
    """
    found = {file: job_file_problems(file) for file in files}
    if as_json:
        print_json([{"file": str(file), "valid": not each, "problems": each} for file, each in found.items()])
        return 2 if any(found.values()) else 0
    if problems := [problem for each in found.values() for problem in each]:
        raise SpecError(problems)
    for file in files:
        click.echo(f"{file}: valid")
    return 0
