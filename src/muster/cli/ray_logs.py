"""`muster logs --ray`: list or print files in the nodes' archives of Ray's logs."""

from __future__ import annotations

import fnmatch
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.filesize import decimal

from muster.cli.json_output import as_text_or_base64, print_json
from muster.cli.output import write_output
from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.hosts import host_file_name, hosts_by_index
from muster.rundir.paths import RAY_LOGS_SUFFIX
from muster.runs.stop import is_live
from muster.views.sanitize import printable


def print_ray_logs(run: RunPaths, node: str | None, pattern: str | None, as_json: bool = False) -> None:
    """List the files in the archives or, with a pattern, print the files that match it."""
    attempt, archives = _newest_archives(run)
    if attempt is None:
        raise click.ClickException(_missing_reason(run))
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
            if as_json:
                content = {} if data is None else as_text_or_base64(data)
                print_json({"archive": str(archive), "file": member.name, "size": member.size, **content})
                continue
            if data is None:
                click.echo(f"{decimal(member.size):>10}  {printable(member.name)}")
                continue
            click.echo(f"==> {printable(member.name)} <==")
            write_output(data)
    if not found:
        of_node = f" of {node}" if node is not None else ""
        what = f"a file {pattern}" if pattern else "files"
        raise click.ClickException(f"{run.run_id} has no archive of Ray's logs{of_node} with {what} in it")


def _members(archive: Path, pattern: str | None) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Yield the archive's members, with data only for those that match; report and skip an unreadable archive."""
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
    """Match the listed path, the path inside the archive, or the file name."""
    inside = name.partition("/")[2]
    return any(fnmatch.fnmatchcase(text, pattern) for text in (name, inside, inside.rpartition("/")[2]))


def _newest_archives(run: RunPaths) -> tuple[AttemptPaths | None, list[Path]]:
    """Return the newest attempt that has archives, and these."""
    newest = run.newest_attempt()
    for number in reversed(range(newest.number + 1 if newest else 0)):
        attempt = run.attempt(number)
        found = [sorted(Path(directory).glob("*" + RAY_LOGS_SUFFIX)) for directory in attempt.ray_logs_dirs()]
        if archives := [archive for of_cycle in found for archive in of_cycle]:
            return attempt, archives
    return None, []


def _node_name(attempt: AttemptPaths, node: str, nodes: int) -> str:
    """Return the file name of a node given by node index or host name."""
    hosts = hosts_by_index(attempt, nodes)
    return host_file_name(hosts[int(node)] if node.isdigit() and int(node) < len(hosts) else node)


def _missing_reason(run: RunPaths) -> str:
    job = read_record(run.job)
    if not job.get("ray", True):
        return f"{run.run_id} has no Ray"
    if is_live(run):
        return f"{run.run_id} has not ended: Ray's logs are archived when it ends"
    policy = job.get("ray_logs", "on-failure")
    hint = "; `--ray-logs always` keeps them after a success, too" if policy == "on-failure" else ""
    return f"{run.run_id} has no archives of Ray's logs: it ran with --ray-logs {policy}{hint}"
