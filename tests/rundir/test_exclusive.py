"""Claims: exactly one of several claimants succeeds, with and without hard links."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from muster.rundir import create_exclusive, exclusive, read_json, release_exclusive


def _failing(code: int) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture(params=["hard links", *sorted(exclusive.NO_HARD_LINKS)])
def filesystem(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem with hard links, or one that answers `link` with this error."""
    if request.param != "hard links":
        monkeypatch.setattr(os, "link", _failing(request.param))


@pytest.mark.usefixtures("filesystem")
def test_the_first_claim_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "lead-0.json")
    assert create_exclusive(path, {"host": "n0"})
    assert not create_exclusive(path, {"host": "n1"})
    assert read_json(path) == {"host": "n0"}
    assert {name for name in os.listdir(tmp_path) if not name.endswith(".claim")} == {"lead-0.json"}


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_of_many_processes_that_claim_at_once_exactly_one_succeeds(tmp_path: Path, links: bool) -> None:
    """Each waits for the start signal, then claims twenty names; every name must have one owner."""
    program = """
import os, sys; from muster.rundir import create_exclusive
def no_link(*_): raise OSError(95, "not supported")
if sys.argv[3] == "False": os.link = no_link
print("ready", flush=True); sys.stdin.read()
print(*(int(create_exclusive(f"{sys.argv[1]}/{number}", sys.argv[2])) for number in range(20)))
"""
    claimants = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(me), str(links)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(5)
    ]
    for claimant in claimants:
        assert claimant.stdout.readline() == "ready\n"
    for claimant in claimants:
        claimant.stdin.close()
    won = [list(map(int, claimant.stdout.read().split())) for claimant in claimants]
    assert [claimant.wait() for claimant in claimants] == [0] * 5
    assert [sum(claims) for claims in zip(*won, strict=True)] == [1] * 20
    for number in range(20):
        assert won[int(read_json(str(tmp_path / str(number))))][number] == 1  # and the file names the winner
    assert len([name for name in os.listdir(tmp_path) if not name.endswith(".claim")]) == 20


def test_a_claim_whose_answer_was_lost_is_known_by_the_link_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS the server may have linked although the client got an error."""
    link = os.link

    def link_and_fail(source: str, target: str) -> None:
        link(source, target)
        raise OSError("timed out")

    monkeypatch.setattr(os, "link", link_and_fail)
    assert create_exclusive(str(tmp_path / "lead-0.json"), {})
    assert not create_exclusive(str(tmp_path / "lead-0.json"), {})


@pytest.mark.usefixtures("filesystem")
def test_a_released_claim_can_be_made_again(tmp_path: Path) -> None:
    path = str(tmp_path / "job-claim.json")
    assert create_exclusive(path, {"host": "n0"})
    release_exclusive(path)
    assert os.listdir(tmp_path) == []
    assert create_exclusive(path, {"host": "n1"})
    assert read_json(path) == {"host": "n1"}


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC, errno.ENOTCONN])
def test_a_filesystem_that_fails_is_no_other_claimant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", _failing(code))
    with pytest.raises(OSError) as caught:
        create_exclusive(str(tmp_path / "lead-0.json"), {})
    assert caught.value.errno == code
    assert os.listdir(tmp_path) == []


def test_a_server_that_answers_eperm_for_a_name_that_exists_gets_no_second_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sshfs does. The listing is stale, so only a link to another name shows that hard links work."""
    path, link = str(tmp_path / "lead-0.json"), os.link

    def link_as_sshfs(source: str, target: str) -> None:
        try:
            link(source, target)
        except FileExistsError:
            raise PermissionError(errno.EPERM, "not permitted") from None

    assert create_exclusive(path, {"host": "n0"})
    monkeypatch.setattr(os, "link", link_as_sshfs)
    monkeypatch.setattr(exclusive, "is_listed", lambda _: False)
    assert not create_exclusive(path, {"host": "n1"})
    assert read_json(path) == {"host": "n0"}
    assert os.listdir(tmp_path) == ["lead-0.json"]


def test_without_hard_links_a_claim_whose_reply_was_lost_is_known_by_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def rename_and_fail(source: str, target: str) -> None:
        rename(source, target)
        if os.path.isdir(target):
            raise OSError(errno.EIO, "timed out")

    monkeypatch.setattr(os, "link", _failing(errno.ENOTSUP))
    monkeypatch.setattr(os, "rename", rename_and_fail)
    assert create_exclusive(str(tmp_path / "lead-0.json"), {})
    assert not create_exclusive(str(tmp_path / "lead-0.json"), {})


def test_without_hard_links_the_next_claimant_publishes_the_record_of_a_dead_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the term would belong to a node that cannot be read from any file."""
    path = str(tmp_path / "lead-0.json")
    monkeypatch.setattr(os, "link", _failing(errno.ENOTSUP))
    with monkeypatch.context() as dying:
        dying.setattr(exclusive, "write_atomic", _failing(errno.EIO))
        with pytest.raises(OSError):
            create_exclusive(path, {"host": "n0"})
    assert not os.path.exists(path)
    assert not create_exclusive(path, {"host": "n1"})
    assert read_json(path) == {"host": "n0"}


def test_without_hard_links_nor_directories_the_claim_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _failing(errno.ENOTSUP))
    monkeypatch.setattr(os, "mkdir", _failing(errno.EROFS))
    with pytest.raises(OSError, match="Read-only"):
        create_exclusive(str(tmp_path / "lead-0.json"), {})
