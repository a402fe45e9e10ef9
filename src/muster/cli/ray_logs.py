"""`muster logs --ray`: what the nodes' archives of Ray's logs hold."""

from __future__ import annotations

import fnmatch
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.filesize import decimal

from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.hosts import host_file_name, hosts_by_rank
from muster.rundir.paths import RAY_LOGS_SUFFIX
from muster.runs.stop import is_live
from muster.views.sanitize import printable


def show(run: RunPaths, node: str | None, pattern: str | None) -> None:
    """List the files in the archives or, with a pattern, print those that match it."""
    attempt, archives = _newest_archives(run)
    if attempt is None:
        raise click.ClickException(_why_none(run))
    if node is not None:
        job = read_record(run.job)
        name = _node_name(attempt, node, int(job.get("nodes", 0)) + int(job.get("spares", 0)))
        archives = [
            path for path in archives if path.name == name + RAY_LOGS_SUFFIX or path.name.startswith(f"{name}.try")
        ]
    found = 0
    for archive in archives:
        for member, data in _members(archive, pattern):
            found += 1
            if data is None:
                click.echo(f"{decimal(member.size):>10}  {printable(member.name)}")
                continue
            click.echo(f"==> {printable(member.name)} <==")
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    if not found:
        what = f"a file {pattern}" if pattern else "files"
        raise click.ClickException(f"{run.run_id} has no archive of Ray's logs{_of(node)} with {what} in it")


def _members(archive: Path, pattern: str | None) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """What is in one archive, the data only of what matches; one that cannot be read is named, and passed over."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if pattern is None:
                    yield member, None
                elif _matches(member.name, pattern) and (file := tar.extractfile(member)) is not None:
                    yield member, file.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        click.echo(f"muster: {archive} cannot be read: {error}", err=True)


def _matches(name: str, pattern: str) -> bool:
    """By the file's own name, by its path in the archive, or by the path as it is listed."""
    inside = name.partition("/")[2]
    return any(fnmatch.fnmatchcase(text, pattern) for text in (name, inside, inside.rpartition("/")[2]))


def _newest_archives(run: RunPaths) -> tuple[AttemptPaths | None, list[Path]]:
    """Of the newest attempt that has any."""
    newest = run.newest_attempt()
    for number in reversed(range(newest.number + 1 if newest else 0)):
        attempt = run.attempt(number)
        found = [sorted(Path(directory).glob("*" + RAY_LOGS_SUFFIX)) for directory in attempt.ray_logs_dirs()]
        if archives := [archive for of_cycle in found for archive in of_cycle]:
            return attempt, archives
    return None, []


def _node_name(attempt: AttemptPaths, node: str, nodes: int) -> str:
    """A rank is a number; anything else is the host's name."""
    hosts = hosts_by_rank(attempt, nodes)
    return host_file_name(hosts[int(node)] if node.isdigit() and int(node) < len(hosts) else node)


def _why_none(run: RunPaths) -> str:
    job = read_record(run.job)
    if not job.get("ray", True):
        return f"{run.run_id} has no Ray"
    if is_live(run):
        return f"{run.run_id} has not ended: Ray's logs are kept when it does"
    policy = job.get("ray_logs", "on-failure")
    hint = "; `--ray-logs always` keeps them after a success, too" if policy == "on-failure" else ""
    return f"{run.run_id} has no archives of Ray's logs: it ran with --ray-logs {policy}{hint}"


def _of(node: str | None) -> str:
    return f" of {node}" if node is not None else ""
