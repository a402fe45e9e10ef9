"""`POST /execute` as NeMo-Skills' clients use it: exact answers, at every isolation level."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

TIMED_OUT = "Execution timed out after {} seconds\n"


def test_a_program_s_output_is_the_answer_exactly(box: Served) -> None:
    assert box.execute("print(1)") == {"process_status": "completed", "stdout": "1\n", "stderr": ""}


def test_an_exception_is_a_traceback_on_stderr_and_still_completed(box: Served) -> None:
    assert box.execute("1 / 0") == {
        "process_status": "completed",
        "stdout": "",
        "stderr": 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
        "ZeroDivisionError: division by zero\n",
    }


def test_a_syntax_error_is_reported_as_by_python(box: Served) -> None:
    answer = box.execute("x = )")
    assert answer == {
        "process_status": "completed",
        "stdout": "",
        "stderr": "  File \"<string>\", line 1\n    x = )\n        ^\nSyntaxError: unmatched ')'\n",
    }


@pytest.mark.parametrize("timeout", [1, 0.5])
def test_a_timeout_repeats_the_number_as_it_was_written(box: Served, timeout: float) -> None:
    answer = box.execute("print('lost', flush=True)\nwhile True: pass", timeout=timeout)
    assert answer == {"process_status": "timeout", "stdout": "", "stderr": TIMED_OUT.format(timeout)}


@pytest.mark.parametrize("language", ["python", "shell"])
def test_a_timeout_is_answered_in_time_although_signals_are_ignored(box: Served, language: str) -> None:
    stubborn = {
        "python": "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "shell": "trap '' INT TERM HUP; while true; do sleep 1; done",
    }
    started = time.monotonic()
    answer = box.execute(stubborn[language], language, timeout=1)
    assert answer["process_status"] == "timeout"
    assert time.monotonic() - started < 1 + 3 + 60  # the three seconds of the contract, and a busy machine's


def test_stdin_is_what_was_sent(box: Served) -> None:
    code = "import sys\nprint(sys.stdin.readline().strip())\nprint(len(sys.stdin.read()))"
    assert box.out(code, std_input="first\n" + "x" * 300_000) == "first\n300000\n"
    assert box.out("import sys; print(repr(sys.stdin.read()))") == "''\n"
    assert box.out("cat", "shell", std_input="grüße") == "grüße"


def test_output_written_past_python_is_captured_too(box: Served) -> None:
    code = "import os, subprocess\nprint(1, flush=True)\nos.write(1, b'2\\n')\nsubprocess.run(['echo', '3'])"
    assert box.out(code) == "1\n2\n3\n"


def test_each_stream_is_cut_at_exactly_the_characters_asked_for(box: Served) -> None:
    code = "import sys\nprint('ä' * 3000, end='')\nprint('b' * 10, end='', file=sys.stderr)"
    answer = box.execute(code, max_output_characters=10)
    assert (answer["stdout"], answer["stderr"]) == ("ä" * 10 + "<output cut>", "b" * 10)
    assert box.execute("print('c' * 2000)")["stdout"] == "c" * 1000 + "<output cut>"


def test_bytes_that_are_no_text_are_replaced(box: Served) -> None:
    assert box.out("import os; os.write(1, b'a\\xff\\xfeb')") == "a\ufffd\ufffdb"


def test_a_shell_command_that_fails_is_an_error(box: Served) -> None:
    assert box.execute("echo out; echo err >&2; exit 3", "shell") == {
        "process_status": "error",
        "stdout": "out\n",
        "stderr": "err\n",
    }
    assert box.out("echo $((6 * 7)) | cat", "shell") == "42\n"


def test_a_script_longer_than_an_argument_may_be_runs(strong: Served) -> None:
    assert strong.out("true\n" * 200_000 + "echo end", "shell") == "end\n"


def test_a_body_of_several_megabytes_passes(strong: Served) -> None:
    assert strong.out(f"print(len({'x' * 3_000_000!r}))") == "3000000\n"


def test_exit_functions_threads_and_buffers_are_waited_for(strong: Served) -> None:
    code = """
import atexit, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("first", end="\\n")
"""
    assert strong.out(code) == "first\nthread\nlast\n"


@pytest.mark.parametrize(
    ("leaving", "code", "said"),
    [("sys.exit(3)", 3, ""), ("sys.exit('why')", 1, "why\n"), ("os._exit(4)", 4, ""), ("sys.exit()", 0, "")],
)
def test_the_exit_code_is_reported_on_request(strong: Served, leaving: str, code: int, said: str) -> None:
    answer = strong.execute(f"import os, sys; {leaving}", report=True)
    assert (answer["exit_code"], answer["stderr"], answer["reason"]) == (code, said, None)


def test_resource_usage_is_in_a_header_and_on_request_in_the_body(strong: Served) -> None:
    answer = strong.execute("sum(range(3_000_000))", report=True)
    usage = answer["usage"]
    assert usage["cpu_s"] > 0.01 and usage["wall_s"] >= 0.01 and usage["max_rss_kb"] > 1000
    assert json.loads(answer.headers["X-Muster-Usage"]) == usage


def test_programs_do_not_draw_the_same_random_numbers(strong: Served) -> None:
    drawn = {strong.out("import random; print(random.random())") for _ in range(4)}
    assert len(drawn) == 4


def test_a_program_finds_an_interpreter_as_fresh_as_python_c(strong: Served) -> None:
    code = """
import sys
print(__name__, sys.argv, sys.path[0] == "", [m for m in sys.modules if m.startswith("muster")])
try:
    import muster_of_nobody
except ImportError as error:
    print(error)
"""
    assert strong.out(code) == "__main__ ['-c'] True []\nNo module named 'muster_of_nobody'\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        ([], "object"),
        ({"timeout": 1}, "generated_code is required"),
        ({"generated_code": "1"}, "timeout is required"),
        ({"generated_code": "1", "timeout": 0, "language": "python"}, "timeout must be a number greater than 0"),
        ({"generated_code": "1", "timeout": 1e9, "language": "python"}, "at most 3600"),
        (
            {"generated_code": "1", "timeout": 1, "language": "cobol"},
            "unknown language 'cobol'; there are ipython, python",
        ),
        ({"generated_code": "1", "timeout": 1}, "X-Session-ID header required for ipython sessions"),
        ({"generated_code": 1, "timeout": 1, "language": "python"}, "generated_code must be a string"),
    ],
)
def test_what_cannot_be_run_is_a_400_with_all_three_keys(strong: Served, body: object, words: str) -> None:
    answer = strong.ask("POST", "/execute", body)
    assert answer.status == 400 and words in answer["error"]
    assert {"process_status", "stdout", "stderr"} <= set(answer)


def test_a_missing_session_header_is_told_in_the_contract_s_words(strong: Served) -> None:
    answer = strong.ask("POST", "/execute", {"generated_code": "1", "timeout": 1})
    assert answer["error"] == "X-Session-ID header required for ipython sessions"


def test_private_scratch_is_empty_for_every_program(box: Served) -> None:
    """But for the way to the interpreter, where that is below /tmp: a read-only mount which the server made."""
    code = """
for path in "$PWD"/* "$TMPDIR"/*; do test ! -e "$path" || mountpoint -q "$path" || echo "$path"; done
mkdir -p d/e; echo x > d/e/f; chmod 0 d; echo y > "$TMPDIR/g"
"""
    for _ in range(6):  # more than there are workers: each is used again
        assert box.out(code, "shell") == ""


def test_a_workspace_is_shared_by_the_calls_that_name_it(box: Served) -> None:
    name = {"X-Workspace-ID": box.new_session()}
    box.execute("mkdir there; echo 'int main(){return 7;}' > there/m.c; echo t > $TMPDIR/t", "shell", headers=name)
    box.execute("gcc -o there/m there/m.c", "shell", headers=name)
    answer = box.execute("cat $TMPDIR/t; ./there/m", "shell", headers=name, report=True)
    assert (answer["stdout"], answer["exit_code"]) == ("t\n", 7)
    assert box.execute("ls", "shell")["stdout"] == ""
    assert box.ask("DELETE", f"/workspaces/{name['X-Workspace-ID']}").status == 200
    assert box.execute("ls", "shell", headers=name)["stdout"] == ""
