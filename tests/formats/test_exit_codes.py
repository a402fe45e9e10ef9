"""The exit codes of `muster run` that scripts rely on; docs/reference/exit-codes.md lists them."""

from __future__ import annotations

import pytest
from tests.running import MusterCommand


@pytest.mark.parametrize(
    ("options", "command", "code"),
    [
        ([], ["true"], 0),
        ([], ["sh", "-c", "exit 3"], 3),
        ([], ["sh", "-c", "kill -KILL $$"], 137),
        ([], ["no-such-command"], 127),
        (["--setup", "exit 1"], ["true"], 125),
        (["--on-node-loss", "perhaps"], ["true"], 2),
    ],
    ids=["success", "driver's own", "signal", "not found", "infrastructure", "usage"],
)
def test_a_run_exits_with_the_documented_code(
    muster: MusterCommand, options: list[str], command: list[str], code: int
) -> None:
    done = muster.local(*options, "--", *command, nodes=1)
    assert done.returncode == code, done.stderr
