"""The endpoints of SandboxFusion: programs, notebooks, and submissions that are judged by tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from muster.sandbox.api import sandbox_fusion, submissions
from muster.sandbox.api.large_bodies import LargeBodies
from muster.sandbox.api.nemo_skills import BadRequest, Bounds
from muster.sandbox.api.sandbox_fusion import CommonFields
from muster.sandbox.api.sender import Sender, sender_of
from muster.sandbox.engine.admission_queue import BATCH, PROGRAM, Overloaded
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.languages import PYTHON
from muster.sandbox.http.codec import HttpRequest, HttpResponse
from muster.sandbox.models import Program, ProgramResult, ProgramStep

FETCH_TIMEOUT_S = 10.0
PYTHON_FILE = "sandbox_main.py"  # a name that no file of a request has
PATHS = (
    "/run_code",
    "/run_jupyter",
    "/submit",
    "/list_ids",
    "/get_prompts",
    "/get_prompt_by_id",
    "/get_metrics",
    "/get_metrics_function",
)
Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
Action = Callable[[Any, Sender], Awaitable[Any]]


class FusionRoutes:
    """Handles requests of SandboxFusion's clients."""

    def __init__(self, engine: Engine, bounds: Bounds, bodies: LargeBodies, has_token: bool) -> None:
        self._engine, self._bounds, self._bodies, self._has_token = engine, bounds, bodies, has_token
        do: dict[str, Action] = {
            "/run_code": self._run_code,
            "/run_jupyter": self._run_notebook,
            "/submit": self._submit,
            "/list_ids": self._list_ids,
            "/get_prompts": self._prompts,
            "/get_prompt_by_id": self._prompt,
            "/get_metrics": self._metrics,
            "/get_metrics_function": self._metrics_function,
        }
        self.table: dict[tuple[str, str], Handler] = {("POST", path): self._handler(do[path]) for path in PATHS}
        self.table["GET", "/list_datasets"] = self._datasets

    def _handler(self, do: Action) -> Handler:
        async def handle(request: HttpRequest) -> HttpResponse:
            try:
                body = await do(request.json(), sender_of(request, self._has_token))
                return HttpResponse(200, await self._bodies.encoded(body))
            except ValueError as error:  # BadRequest is one
                return HttpResponse(400, sandbox_fusion.refusal(str(error)))
            except Overloaded as error:  # 504 is the status after which its clients retry
                return HttpResponse(
                    504, sandbox_fusion.refusal(str(error)), {"Retry-After": str(self._engine.admission.retry_after_s)}
                )

        return handle

    # -- programs and notebooks -------------------------------------------------------------------------------------

    async def _run_code(self, body: Any, sender: Sender) -> dict[str, Any]:
        return await self._run(body, PROGRAM, sender)

    async def _run(self, body: Any, kind: int, sender: Sender) -> dict[str, Any]:
        parsed = sandbox_fusion.parse(body, self._engine.languages, self._bounds)
        timeouts = parsed.compile_timeout, parsed.run_timeout
        steps = self._engine.languages.steps(
            parsed.language, parsed.code, parsed.stdin, timeouts, parsed.shared.files, _limits(parsed.shared)
        )
        if parsed.language == PYTHON:  # SandboxFusion runs a file: programs may read their own source
            steps = (replace(steps[0], job={**steps[0].job, "file": PYTHON_FILE}),)
        program = Program(steps, self._bounds.output, parsed.language, owner=sender.owner, client=sender.client)
        ends, files = await self._run_and_fetch(program, parsed.shared, kind)
        facts = ends, len(steps) > 1, self._bounds.output, files, parsed.shared.message
        return await self._bodies.translated(ends, sandbox_fusion.answer, *facts)

    async def _run_notebook(self, body: Any, sender: Sender) -> dict[str, Any]:
        parsed = sandbox_fusion.parse_notebook(body, self._bounds)
        limits = _limits(parsed.shared)
        job = {
            "do": "notebook",
            "cells": list(parsed.cells),
            "backend": self._engine.pool.session_backend,
            "cell_timeout": parsed.cell_timeout,
            **({"files": parsed.shared.files} if parsed.shared.files else {}),
            **({"limits": limits} if limits else {}),
        }
        steps = (ProgramStep(job, parsed.total_timeout),)
        program = Program(steps, self._bounds.output, "notebook", owner=sender.owner, client=sender.client)
        ends, files = await self._run_and_fetch(program, parsed.shared, PROGRAM)
        return await self._bodies.translated(
            ends, sandbox_fusion.notebook_answer, ends[0], files, parsed.shared.message
        )

    async def _run_and_fetch(
        self, program: Program, shared: CommonFields, kind: int
    ) -> tuple[list[ProgramResult], dict[str, str]]:
        """Run a program; return the results of its steps and the files that were asked for, also if a step failed."""
        if shared.fetch:
            job = {"do": "fetch", "names": list(shared.fetch)}
            program = replace(program, steps=(*program.steps, ProgramStep(job, FETCH_TIMEOUT_S, always=True)))
        ends = await self._engine.run(program, kind)
        files = sandbox_fusion.fetched(ends.pop()) if shared.fetch else {}
        return ends, files

    # -- submissions ------------------------------------------------------------------------------------------------

    async def _submit(self, body: Any, sender: Sender) -> dict[str, Any]:
        submission = submissions.parse(body)
        code, programs = submissions.programs(submission)
        tests = await self._judge(programs, not submission.extra.get("run_all_cases"), sender)
        return submissions.evaluation(submission, code, tests, programs[0].body["code"] if programs else "")

    async def _judge(
        self, programs: list[submissions.JudgedProgram], stops: bool, sender: Sender
    ) -> list[dict[str, Any]]:
        """Run programs at the same time; return their verdicts, up to the first that failed if `stops`."""
        slots = asyncio.Semaphore(self._engine.settings.workers_max)

        async def judge(program: submissions.JudgedProgram) -> dict[str, Any]:
            async with slots:
                return submissions.verdict(program, await self._run(program.body, BATCH, sender))

        tasks = [asyncio.ensure_future(judge(program)) for program in programs]
        tests: list[dict[str, Any]] = []
        try:
            for task in tasks:
                tests.append(await task)
                if stops and not tests[-1]["passed"]:
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return tests

    # -- problems: those that the request brings --------------------------------------------------------------------

    async def _datasets(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, [])

    async def _prompts(self, body: Any, sender: Sender) -> list[dict[str, Any]]:
        rows, _ = submissions.problems(body)
        first = body.get("offset", 0)
        if not isinstance(first, int) or not isinstance(body.get("limit", 0), int):
            raise BadRequest("offset and limit must be integers")
        return [submissions.prompt(row) for row in rows[first : first + body.get("limit", len(rows))]]

    async def _list_ids(self, body: Any, sender: Sender) -> list[Any]:
        return [one["id"] for one in await self._prompts(body, sender)]

    async def _prompt(self, body: Any, sender: Sender) -> dict[str, Any]:
        rows, _ = submissions.problems(body)
        return submissions.prompt(submissions.chosen(rows, body.get("id")))

    async def _metrics(self, body: Any, sender: Sender) -> dict[str, Any]:
        return {}

    async def _metrics_function(self, body: Any, sender: Sender) -> dict[str, Any]:
        return {"function": None}


def _limits(shared: CommonFields) -> dict[str, int] | None:
    return {"memory_mb": shared.memory_mb} if shared.memory_mb else None
