"""SandboxFusion's endpoints: what is run for a request, and programs, notebooks and submissions in a real sandbox."""

from __future__ import annotations

import base64
import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.sandbox.results import ended

from muster.sandbox.api.fusion_routes import PATHS, PYTHON_FILE, FusionRoutes
from muster.sandbox.api.large_bodies import LargeBodies
from muster.sandbox.api.nemo_skills import Bounds
from muster.sandbox.engine.admission_queue import BATCH, PROGRAM, Overloaded
from muster.sandbox.engine.languages import Languages
from muster.sandbox.http.codec import HttpRequest, HttpResponse
from muster.sandbox.models import Program, ProgramResult
from muster.sandbox.output import Captured

if TYPE_CHECKING:
    from tests.sandbox.serving import Served


class FakeEngine:
    """Answers programs with results, or an error."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(workers_max=2)
        self.pool = SimpleNamespace(session_backend="repl")
        self.admission = SimpleNamespace(retry_after_s=7)
        self.languages = Languages(os.environ["PATH"])
        self.results: list[ProgramResult] = [ended()]
        self.error: Exception | None = None
        self.ran: list[tuple[Program, int]] = []

    async def run(self, work: Program, kind: int) -> list[ProgramResult]:
        if self.error is not None:
            raise self.error
        self.ran.append((work, kind))
        return list(self.results)


@pytest.fixture
def engine() -> Any:
    return FakeEngine()


async def ask(engine: Any, path: str, body: Any, method: str = "POST") -> HttpResponse:
    handler = FusionRoutes(engine, Bounds(3600, 1 << 20, 4096), LargeBodies(), has_token=False).table[method, path]
    return await handler(HttpRequest(method, path, {}, json.dumps(body).encode()))


async def test_a_python_program_is_a_file_and_files_are_fetched_after_a_failure_too(engine: Any) -> None:
    body = {"code": "x", "language": "python", "fetch_files": ["out"], "memory_limit_MB": 64}
    for first in (ended(), ended(exit_code=1)):
        engine.results = [first, ended(stdout=Captured(b'{"out": "eA=="}'))]
        response = await ask(engine, "/run_code", body)
        assert response.content["files"] == {"out": "eA=="} and response.content["run_result"]["stdout"] == "o"
    work, kind = engine.ran[0]
    run, fetch = work.steps
    assert (kind, run.job["file"], run.job["limits"], run.always) == (PROGRAM, PYTHON_FILE, {"memory_mb": 64}, False)
    assert (fetch.job, fetch.always) == ({"do": "fetch", "names": ["out"]}, True)


async def test_a_reduced_limit_is_told_in_the_message(engine: Any) -> None:
    response = await ask(engine, "/run_code", {"code": "x", "language": "python", "run_timeout": 5000})
    assert response.content["message"] == "run_timeout was reduced from 5000 to 3600, the limit of this server"
    assert engine.ran[0][0].steps[0].timeout == 3600


async def test_an_overload_asks_for_a_retry(engine: Any) -> None:
    engine.error = Overloaded("full")
    response = await ask(engine, "/run_code", {"code": "x", "language": "python"})
    assert (response.status, response.content["message"]) == (504, "full")


@pytest.mark.parametrize("path", [path for path in PATHS if "metrics" not in path])
async def test_every_endpoint_refuses_what_it_cannot_run(engine: Any, path: str) -> None:
    response = await ask(engine, path, {})
    assert (response.status, response.content["status"]) == (400, "SandboxError")
    assert response.content["detail"] and engine.ran == []


async def test_a_notebook_is_one_step(engine: Any) -> None:
    engine.results = [ended(stdout=Captured(b"[]"))]
    response = await ask(engine, "/run_jupyter", {"cells": ["1"], "files": {"f": "eA=="}, "memory_limit_MB": 64})
    assert (response.status, response.content["status"], response.content["cells"]) == (200, "Success", [])
    (step,) = engine.ran[0][0].steps
    assert step.timeout == 45 and step.job == {
        "do": "notebook",
        "cells": ["1"],
        "backend": "repl",
        "cell_timeout": 0,
        "files": {"f": "eA=="},
        "limits": {"memory_mb": 64},
    }


async def test_cases_are_judged_up_to_the_first_that_fails(engine: Any) -> None:
    cases = [{"input": {"stdin": ""}, "output": {"stdout": expected}} for expected in ("o", "x", "o")]
    config = {"dataset_type": "CommonOJDataset", "provided_data": {"test": cases}, "language": "python"}
    body = {"id": "p", "completion": "```py\nx\n```", "config": config}
    response = await ask(engine, "/submit", body)
    assert [test["passed"] for test in response.content["tests"]] == [True, False]
    assert response.content["accepted"] is False and response.content["extracted_code"] == "x"
    assert all(kind == BATCH for _, kind in engine.ran)
    response = await ask(engine, "/submit", {**body, "config": {**config, "extra": {"run_all_cases": True}}})
    assert [test["passed"] for test in response.content["tests"]] == [True, False, True]


async def test_problems_of_the_request_are_listed(engine: Any) -> None:
    rows = [{"id": n, "content": f"problem {n}", "labels": "{}"} for n in range(3)]
    body = {"dataset": "any", "config": {"dataset_type": "AutoEvalDataset", "provided_data": rows}}
    listed = (await ask(engine, "/get_prompts", {**body, "offset": 1, "limit": 1})).content
    assert listed == [{"id": 1, "prompt": "problem 1", "labels": {}}]
    assert (await ask(engine, "/list_ids", body)).content == [0, 1, 2]
    assert (await ask(engine, "/get_prompt_by_id", {**body, "id": 2})).content["prompt"] == "problem 2"
    assert (await ask(engine, "/get_metrics", body)).content == {}
    assert (await ask(engine, "/get_metrics_function", body)).content == {"function": None}
    assert (await ask(engine, "/list_datasets", None, "GET")).content == []
    assert (await ask(engine, "/get_prompts", {**body, "offset": "1"})).status == 400


# -- in a sandbox -----------------------------------------------------------------------------------------------------


def test_a_program_may_read_its_own_source(strong: Served) -> None:
    code = "import inspect, sys\ndef f(): pass\nprint(inspect.getsource(f), __file__ == sys.argv[0], flush=True)\n1 / 0"
    answer = strong.ask("POST", "/run_code", {"code": code, "language": "python", "run_timeout": 60})
    assert answer["run_result"]["stdout"] == "def f(): pass\n True\n"
    assert f'{PYTHON_FILE}", line 4, in <module>\n    1 / 0' in answer["run_result"]["stderr"]


def test_files_of_a_program_that_failed_or_took_too_long_are_fetched(strong: Served) -> None:
    for end in ("raise SystemExit(3)", "import time; time.sleep(600)"):
        body = {"code": f"open('a', 'w').write('x')\nopen('/tmp/b', 'w').write('y')\n{end}", "language": "python"}
        answer = strong.ask("POST", "/run_code", {**body, "run_timeout": 20, "fetch_files": ["a", "/tmp/b", "c"]})
        assert answer["status"] == "Failed"
        assert {name: base64.b64decode(data) for name, data in answer["files"].items()} == {"a": b"x", "/tmp/b": b"y"}


def test_a_notebook_keeps_its_state_and_goes_on_after_an_error(strong: Served) -> None:
    cells = [
        "a = 41",
        "a + 1",
        "import sys; print(a); print('e', file=sys.stderr)",
        "1 / 0",
        "print(open('in').read())",
    ]
    body = {"cells": cells, "files": {"in": base64.b64encode(b"xy").decode()}, "total_timeout": 120}
    answer = strong.ask("POST", "/run_jupyter", body)
    assert (answer["status"], answer["driver"]["status"]) == ("Success", "Finished"), answer
    first, value, printed, failed, last = answer["cells"]
    assert first == {"stdout": "", "stderr": "", "display": [], "error": []}
    assert value["display"] == [{"text/plain": "42"}]
    assert (printed["stdout"], printed["stderr"]) == ("41\n", "e\n")
    assert (failed["error"][0]["ename"], failed["error"][0]["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert last["stdout"] == "xy\n"


def test_a_notebook_that_takes_too_long_has_no_cells(strong: Served) -> None:
    body = {"cells": ["open('a', 'w').write('x')", "while True: pass"], "total_timeout": 20, "fetch_files": ["a"]}
    answer = strong.ask("POST", "/run_jupyter", body)
    assert (answer["status"], answer["driver"]["status"], answer["cells"]) == ("Failed", "TimeLimitExceeded", [])
    assert base64.b64decode(answer["files"]["a"]) == b"x"


def test_a_submission_is_judged(strong: Served) -> None:
    cases = [{"input": {"stdin": str(n)}, "output": {"stdout": str(n + 1)}} for n in range(3)]
    config = {"dataset_type": "CommonOJDataset", "provided_data": {"test": cases}, "language": "python"}
    for code, accepted in (("print(int(input()) + 1)", True), ("print(1)", False)):
        body = {"id": 0, "completion": f"```python\n{code}\n```", "config": {**config, "run_timeout": 60}}
        answer = strong.ask("POST", "/submit", body)
        assert answer["accepted"] is accepted, answer
