"""Find runs from any directory: by links in the user's state directory, and in the runs directories at hand."""

from __future__ import annotations

import enum
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from muster.rundir import RunPaths, written_at
from muster.runs.own_jobs import slurm_jobs

DEFAULT_RUNS_DIR = "muster-runs"


class NoSuchRun(Exception):
    """The named run does not exist, or the name is ambiguous."""


def _index_dir() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "muster" / "runs"


def register_run(run: RunPaths) -> None:
    """Make the run findable from any directory. A read-only home is not an error."""
    try:
        _index_dir().mkdir(parents=True, exist_ok=True)
        (_index_dir() / run.run_id).symlink_to(run.root)
    except OSError:
        pass


def unregister_run(run: RunPaths) -> None:
    """Remove the link of a removed run; a link of the same name to another run stays."""
    link = _index_dir() / run.run_id
    try:
        if os.readlink(link) == run.root:
            link.unlink()
    except OSError:
        pass


def all_runs(runs_dir: Path | None = None) -> list[RunPaths]:
    """Return every known run, oldest first; with `runs_dir`, only those in it. Private runs of others are left out.

    Raises NoSuchRun if `runs_dir` cannot be read.
    """
    found = {entry.name: str(entry.resolve()) for entry in _entries(runs_dir) if _access(str(entry)) is Access.READABLE}
    runs = [RunPaths(path) for path in found.values()]
    return sorted(runs, key=lambda run: written_at(run.job) or 0.0)  # None: another process is removing it


def private_runs(runs_dir: Path | None = None) -> list[Path]:
    """Return the directories, beside those of `all_runs`, that belong to other users and cannot be read."""
    return sorted(entry for entry in _entries(runs_dir) if _access(str(entry)) is Access.DENIED)


class Access(enum.Enum):
    """What this user can see of a directory."""

    READABLE = "readable"  # a run
    DENIED = "denied"  # a run of another user, probably
    NO_RUN = "no run"


def _entries(runs_dir: Path | None) -> Iterator[Path]:
    places = [runs_dir] if runs_dir else [Path(DEFAULT_RUNS_DIR), _index_dir()]
    if not runs_dir and "MUSTER_RUNS_DIR" in os.environ:
        places.append(Path(os.environ["MUSTER_RUNS_DIR"]))
    for place in places:
        try:
            names = os.listdir(place)
        except PermissionError as error:
            raise NoSuchRun(f"the runs directory {place} cannot be read: {error.strerror}") from error
        except OSError:
            continue
        yield from (place / name for name in names)


def _access(directory: str) -> Access:
    try:
        os.stat(os.path.join(directory, "job.json"))
    except PermissionError:
        return Access.DENIED
    except OSError:
        return Access.NO_RUN
    return Access.READABLE


def _denied(directory: str) -> NoSuchRun:
    try:
        uid = os.stat(directory).st_uid
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = f"the user with id {uid}"
    except OSError:  # a directory on the way to it is closed
        owner = "another user"
    return NoSuchRun(f"permission denied: {directory} belongs to {owner}, and runs are private")


def find_run(name: str | None, runs_dir: Path | None = None) -> RunPaths:
    """Find a run by its id (or a unique prefix), Slurm job id or path; without a name return the newest."""
    if name and _access(name) is Access.READABLE:
        return RunPaths(os.path.realpath(name))
    if name and _access(name) is Access.DENIED:
        raise _denied(name)
    runs = all_runs(runs_dir)
    for entry in private_runs(runs_dir) if name and name not in (run.run_id for run in runs) else ():
        if entry.name == name:
            raise _denied(str(entry))
    if not runs:
        asked = f"no run or job {name}: " if name else ""
        raise NoSuchRun(f"{asked}no runs found here; name the runs directory with --runs-dir")
    if name is None:
        return runs[-1]
    matching = [run for run in runs if run.run_id == name] or [run for run in runs if name in slurm_jobs(run).ids]
    matching = matching or [run for run in runs if run.run_id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise NoSuchRun(f"no run or job {name}; `muster runs` lists them")
    raise NoSuchRun(f"{name} is ambiguous: it could be {', '.join(run.run_id for run in matching[:5])}")
