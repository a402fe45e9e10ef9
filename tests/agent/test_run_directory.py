"""File operations that an agent cannot do without: tried again while the filesystem fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from muster.agent import run_directory
from muster.agent.run_directory import RunDirectoryError, retried
from muster.rundir.filesystem_type import probe_filesystem_type


class Filesystem:
    """Answers with errors first, then with the text."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def read(self, text: str) -> str:
        if self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        return text


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "RETRY_INTERVAL_S", 0.01)


async def test_an_operation_is_repeated_until_the_server_is_back() -> None:
    errors = errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.ENOSPC
    assert await retried("/x", Filesystem(*errors).read, "text") == "text"


async def test_the_error_after_the_timeout_names_the_file_and_its_filesystem(tmp_path: Path) -> None:
    path, broken = str(tmp_path / "lead-0.json"), Filesystem(*[errno.EIO] * 1000)
    with pytest.raises(RunDirectoryError) as caught:
        await retried(path, broken.read, "text", timeout=0.1)
    kind = probe_filesystem_type(path)
    assert str(caught.value) == f"the filesystem of the run directory ({kind}) failed: {path}: Input/output error"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOENT])
async def test_an_error_that_does_not_pass_is_reported_at_once(code: int) -> None:
    filesystem = Filesystem(code)
    with pytest.raises(RunDirectoryError, match=os.strerror(code)):
        await retried("/x", filesystem.read, "text")
    assert filesystem.errors == []
