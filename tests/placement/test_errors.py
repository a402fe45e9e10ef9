"""The errors of placement: what they show, and that they survive Ray's pickling."""

from __future__ import annotations

import pickle

from muster.placement.errors import SHOWN_LOG_BYTES, NeverFits, PlacementError, SubprocessError


def test_the_known_facts_and_the_last_log_lines_are_shown() -> None:
    error = SubprocessError("x: ended", {"host": "n1", "pid": None, "exit_code": 0, "log_tail": "a\nb\n", "exit": ""})
    assert str(error) == "x: ended (host n1, exit_code 0)\n  | a\n  | b"
    assert str(SubprocessError("x: ended")) == "x: ended"


def test_only_the_end_of_a_long_log_is_shown() -> None:
    shown = str(SubprocessError("x", {"log_tail": "first" + "." * SHOWN_LOG_BYTES}))
    assert "first" not in shown and shown.count(".") == SHOWN_LOG_BYTES


def test_the_error_of_another_process_arrives_whole() -> None:
    error = pickle.loads(pickle.dumps(SubprocessError("x", {"exit_code": 7})))
    assert (type(error), error.message, error.debug_context) == (SubprocessError, "x", {"exit_code": 7})


def test_the_context_is_a_copy() -> None:
    given = {"exit_code": 7}
    SubprocessError("x", given).debug_context["exit_code"] = 8
    assert given == {"exit_code": 7}


def test_a_request_that_never_fits_is_caught_as_a_placement_error() -> None:
    assert issubclass(NeverFits, PlacementError)
