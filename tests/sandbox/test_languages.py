"""Other languages, `POST /run_code` as SandboxFusion's clients send it, and `POST /batch`."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from muster.sandbox.engine.languages import Languages, UnknownLanguage

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

PROGRAMS = {
    "c": '#include <stdio.h>\nint main(void) { int n; scanf("%d", &n); printf("%d\\n", n + 1); return 0; }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n + 1 << std::endl; }",
    "javascript": "const fs = require('fs'); console.log(Number(fs.readFileSync(0)) + 1);",
    "perl": "print <STDIN> + 1, qq(\\n);",
}
NEEDS = {"c": "gcc", "cpp": "g++", "javascript": "node", "perl": "perl"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_program_of_each_language_reads_and_prints(box: Served, language: str) -> None:
    if shutil.which(NEEDS[language]) is None:
        pytest.skip(f"no {NEEDS[language]} here")
    assert box.out(PROGRAMS[language], language, std_input="41", timeout=60) == "42\n"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_a_program_that_does_not_compile_is_an_error_with_the_compiler_s_words(strong: Served) -> None:
    answer = strong.execute("int main(void) { return x; }", "c")
    assert answer["process_status"] == "error" and "undeclared" in answer["stderr"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_compiling_and_running_share_the_timeout(strong: Served) -> None:
    answer = strong.execute("int main(void) { for (;;); }", "c", timeout=3, report=True)
    assert (answer["process_status"], answer["stderr"]) == ("timeout", "Execution timed out after 3 seconds\n")
    assert answer["usage"]["wall_s"] < 3  # the compiler had its part of the three seconds


def test_a_language_that_is_not_installed_is_told_apart_from_an_unknown_one() -> None:
    languages = Languages("/nowhere")
    assert languages.names == ["ipython", "python"]
    with pytest.raises(UnknownLanguage, match="'cpp' is not installed on this node; there are ipython, python"):
        languages.known("c++")
    with pytest.raises(UnknownLanguage, match="unknown language 'cobol'"):
        languages.known("cobol")


# -- SandboxFusion ----------------------------------------------------------------------------------------------------


def run_code(served: Served, **body: Any) -> dict[str, Any]:
    answer = served.ask("POST", "/run_code", body)
    assert answer.status == 200, answer
    return answer


def test_run_code_answers_as_sandboxfusion_does(strong: Served) -> None:
    answer = run_code(strong, code="print(input())", language="python", stdin="hi", memory_limit_MB=-1)
    assert answer["run_result"].pop("execution_time") > 0
    assert answer == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "executor_pod_name": None,
        "files": {},
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "hi\n", "stderr": ""},
    }


def test_run_code_tells_failures_and_timeouts_apart(strong: Served) -> None:
    failed = run_code(strong, code="import sys; sys.exit(3)", language="python")
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 3)
    slow = run_code(strong, code="while True: pass", language="python", run_timeout=1)
    assert (slow["status"], slow["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert slow["run_result"]["return_code"] is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_run_code_has_results_of_compiling_and_running(strong: Served) -> None:
    good = run_code(strong, code=PROGRAMS["cpp"], language="cpp", stdin="1", compile_timeout=60)
    assert good["compile_result"]["return_code"] == 0 and good["run_result"]["stdout"] == "2\n"
    bad = run_code(strong, code="int main() { return x; }", language="cpp", compile_timeout=60)
    assert (bad["status"], bad["run_result"]) == ("Failed", None)
    assert "not declared" in bad["compile_result"]["stderr"]


def test_run_code_brings_files_and_fetches_what_was_made(strong: Served) -> None:
    answer = run_code(
        strong,
        code="data = open('in/a').read()\nopen('out', 'w').write(data * 2)",
        language="python",
        files={"in/a": base64.b64encode(b"xy").decode(), "none": None},
        fetch_files=["out", "missing"],
    )
    assert {name: base64.b64decode(data) for name, data in answer["files"].items()} == {"out": b"xyxy"}


def test_run_code_refuses_in_its_own_words(strong: Served) -> None:
    answer = strong.ask("POST", "/run_code", {"code": "1", "language": "cobol"})
    assert answer.status == 400 and answer["status"] == "SandboxError" and "unknown language" in answer["message"]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_streams_results_as_they_end(strong: Served) -> None:
    requests = [
        {"generated_code": "import time; time.sleep(3); print('slow')", "timeout": 30},
        *({"generated_code": f"print({number})", "timeout": 30} for number in range(1, 20)),
        {"generated_code": "echo shell", "timeout": 30, "language": "shell"},
        {"generated_code": "1", "timeout": -1},
        "nonsense",
        {"generated_code": "1", "timeout": 1, "language": "ipython"},
    ]
    connection = http.client.HTTPConnection("127.0.0.1", strong.port, timeout=90)
    connection.request("POST", "/batch", json.dumps({"requests": requests}), {"Content-Type": "application/json"})
    lines = [json.loads(line) for line in connection.getresponse() if line.strip()]
    connection.close()
    assert sorted(line["index"] for line in lines) == list(range(len(requests)))
    assert lines[0]["index"] != 0  # the slow one did not hold the others up
    by_index = {line["index"]: line for line in lines}
    assert by_index[0]["stdout"] == "slow\n" and by_index[20]["stdout"] == "shell\n"
    assert [by_index[number]["stdout"] for number in range(1, 20)] == [f"{number}\n" for number in range(1, 20)]
    assert all(by_index[number]["process_status"] == "error" for number in (21, 22, 23))
    assert "cannot use sessions" in by_index[23]["error"]


def test_a_batch_without_a_reader_is_stopped(strong: Served) -> None:
    requests = [{"generated_code": "import time; time.sleep(600)", "timeout": 900}] * 50
    connection = http.client.HTTPConnection("127.0.0.1", strong.port, timeout=90)
    connection.request("POST", "/batch", json.dumps({"requests": requests}), {"Content-Type": "application/json"})
    from tests.running import wait_for

    wait_for("the slots to be taken", lambda: strong.ask("GET", "/load")["running"] == 4)
    connection.close()
    wait_for("the slots to be free", lambda: strong.ask("GET", "/load")["running"] == 0)
