"""`muster schema`: print the JSON schema of the job file."""

from __future__ import annotations

import json

import click

from muster.spec.json_schema import job_schema


@click.command()
def schema() -> None:
    """Print the JSON schema of the job file, with a description of each field, for editors and other programs.

    \b
    muster schema > muster.schema.json
    # yaml-language-server: $schema=muster.schema.json      (first line of a job file)

    The schema does not know conflicts of fields: `muster validate FILE` finds these, too.
    """
    click.echo(json.dumps(job_schema(), indent=2))
