"""Checks of single values: the value that is kept, and the reason for a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.spec import validators as v


@pytest.mark.parametrize(
    ("check", "given", "kept"),
    [
        (v.whole_number, 3, 3),
        (v.whole_number, "3", "3"),  # pydantic converts it
        (v.one_line, " a ", " a "),
        (v.no_control, "", ""),
        (v.no_control, "ünï ✓", "ünï ✓"),
        (v.no_nul, "a\n\tb", "a\n\tb"),
        (v.script, "\ncd x\n", "\ncd x\n"),
        (v.job_name, "x" * 64, "x" * 64),
        (v.env_name, "_a9", "_a9"),
        (v.command_words, "a | b", ["bash", "-c", "a | b"]),
        (v.command_words, " \n", []),
        (v.command_words, ("a", "b"), ["a", "b"]),
        (v.command_words, ["a b"], ["a b"]),
        (v.runnable, ["a", ""], ["a", ""]),
        (v.seconds, 90, 90.0),
        (v.seconds, "0", 0.0),
        (v.seconds, " 1H30M ", 5400.0),
        (v.seconds, "1d2h3m4.5s", 93784.5),
        (v.empty_for_none, None, {}),
        (v.empty_for_none, [], []),
        (v.more_than_zero, 0.001, 0.001),
        (v.slurm_time, 90, "90"),
        (v.slurm_time, "2-12:30:59", "2-12:30:59"),
        (v.slurm_time, None, None),
        (v.memory, 4096, "4096"),
        (v.memory, "64gb", "64gb"),
        (v.exclusive, "TRUE", True),
        (v.exclusive, "false", False),
        (v.exclusive, "Topo", "topo"),
        (v.exclusive, None, None),
        (v.size, 1024, 1024),
        (v.size, "512M", 512 * 1024**2),
        (v.size, "1.5 GiB", 3 * 1024**3 // 2),
        (v.size, "2kb", 2048),
        (v.slurm_signal, "R:SIGUSR1@60", "R:SIGUSR1@60"),
        (v.slurm_signal, "12@5", "12@5"),
        (v.comma_list, " a, ,b,", ["a", "b"]),
        (v.comma_list, None, []),
        (v.comma_list, ["a,b"], ["a,b"]),
        (v.requeue_cause, "exit=255", "exit=255"),
        (v.requeue_cause, "stall", "stall"),
        (v.interfaces, "ib*, 10.1.0.0/16,fd77::1", "ib*, 10.1.0.0/16,fd77::1"),
        (v.label, "a", "a"),
        (v.label, "a_b.c-9", "a_b.c-9"),
        (v.label, "x" * 63, "x" * 63),
    ],
)
def test_a_valid_value_is_returned_checked(check: Callable[[Any], object], given: object, kept: object) -> None:
    found = check(given)
    assert found == kept and type(found) is type(kept)


@pytest.mark.parametrize(
    ("check", "given", "reason"),
    [
        (v.whole_number, True, "is not a number"),
        (v.one_line, " ", "is empty"),
        (v.one_line, "a\nb", "contains a newline or a control character"),
        (v.no_control, "a\u2029b", "contains a newline or a control character"),
        (v.no_control, "\udcff", "contains a newline or a control character"),
        (v.no_nul, "a\0", "contains a NUL byte"),
        (v.script, " \n ", "is empty"),
        (v.script, "a\0", "contains a NUL byte"),
        (v.job_name, "x" * 65, "is 65 characters long"),
        (v.job_name, "a/b", "contains a slash"),
        (v.job_name, "", "is empty"),
        (v.env_name, "A-B", "is not the name of an environment variable"),
        (v.env_name, "Ä", "is not the name of an environment variable"),
        (v.runnable, [], "is empty"),
        (v.runnable, [" ", "x"], "has an empty first word"),
        (v.seconds, "", "is not a duration"),
        (v.seconds, "1m1h", "is not a duration"),
        (v.seconds, "1.2.3s", "is not a duration"),
        (v.seconds, "nan", "is not a duration"),
        (v.seconds, 10**400, "is not a duration"),
        (v.seconds, True, "is not a duration"),
        (v.more_than_zero, 0.0, "is not more than zero"),
        (v.slurm_time, "1h", "is not a time limit"),
        (v.slurm_time, "30\n", "is not a time limit"),
        (v.memory, "4 G", "is not an amount of memory"),
        (v.exclusive, "everyone", "is not a mode of --exclusive"),
        (v.exclusive, 1, "is not a mode of --exclusive"),
        (v.size, True, "is not a number of bytes"),
        (v.size, "-1", "is not a number of bytes"),
        (v.slurm_signal, "B:USR2@60", "would signal only the batch script, not the driver; remove B:"),
        (v.slurm_signal, "USR2@", "is not a signal with a time"),
        (
            v.slurm_signal,
            "15@60",
            "cannot be forwarded to the driver: SIGTERM ends the run; Slurm sends it at the time",
        ),
        (v.slurm_signal, "STOP@60", "cannot be forwarded to the driver: SIGSTOP stops the agents, not the driver"),
        (v.requeue_cause, "exit=0", "is not the exit code of a failure, 1 to 255"),
        (v.requeue_cause, "exit=1000", "is not a reason to requeue"),
        (v.interfaces, "eth0,", "has an empty item or a blank in an item"),
        (v.interfaces, "ib0,10.1.0", "has '10.1.0', which is not an address or a network"),
        (v.label, "-a", "is not a name of letters, digits, _, . and -"),
        (v.label, "x" * 64, "is not a name of letters, digits, _, . and -"),
    ],
)
def test_an_invalid_value_is_refused_with_the_reason(
    check: Callable[[Any], object], given: object, reason: str
) -> None:
    with pytest.raises(ValueError) as refused:
        check(given)
    assert str(refused.value).startswith(reason)


@given(days=st.integers(0, 99), hours=st.integers(0, 99), minutes=st.integers(0, 99), seconds=st.integers(0, 99))
def test_a_duration_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, seconds: int) -> None:
    assert v.seconds(f"{days}d{hours}h{minutes}m{seconds}s") == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@pytest.mark.parametrize(("value", "words"), [("a 'b c'", ["a", "b c"]), ("", []), (None, []), (["x y"], ["x y"])])
def test_words_are_a_list_or_text_quoted_as_in_a_shell(value: object, words: list[str]) -> None:
    assert v.words(value) == words
