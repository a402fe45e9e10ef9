"""The endpoints: a request in, an answer out. Whatever goes wrong, an answer of /execute has its three keys."""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable
from urllib.parse import unquote

from muster.sandbox.api import nemo_skills, sandbox_fusion
from muster.sandbox.api.nemo_skills import BadRequest, Bounds
from muster.sandbox.engine.admission_queue import BATCH, PROGRAM, Overloaded
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.languages import IPYTHON, PYTHON
from muster.sandbox.engine.metrics import HOST
from muster.sandbox.engine.sessions import SessionLost
from muster.sandbox.engine.workspaces import BadName
from muster.sandbox.http import origin
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead
from muster.sandbox.models import Program, ProgramResult, ProgramStep, ResourceUsage

FETCH_S = 10.0
SIGN_OF_LIFE_S = 2.0  # in a batch of which nothing ends: its client need not take it for lost
KEYED = ("/sessions", "/workspaces")  # what has names behind it
PROBLEM_SHOWN = 500  # characters of a gateway's problem in the load summary, which the status has for every node
Overview = Callable[[str], Awaitable["dict[str, Any]"]]
Facts = Callable[[], "dict[str, Any]"]


class Routes:
    """Answers requests; `token` is what they must carry, if anything; `overview` asks every node the same; `gateway`
    tells of this node's endpoint in a cluster."""

    def __init__(
        self, box: Engine, token: str | None, overview: Overview | None = None, gateway: Facts | None = None
    ) -> None:
        self._box, self._token, self._overview, self._gateway = box, token, overview, gateway
        settings = box.settings
        self._bounds = Bounds(settings.max_timeout_s, settings.max_output, settings.memory_mb)
        self._table = {
            ("POST", "/execute"): self._execute,
            ("POST", "/run_code"): self._run_code,
            ("POST", "/batch"): self._batch,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/load"): self._load,
            ("GET", "/sessions"): self._sessions,
            ("GET", "/cluster/load"): self._cluster_load,
            ("GET", "/cluster/sessions"): self._cluster_sessions,
        }

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        path = request.path.partition("?")[0]
        try:
            response = await self._route(request, path)
        except Exception:  # a defect of ours: the client gets an answer that it can read, the log the rest
            traceback.print_exc(file=sys.stderr)
            response = HttpResponse(500, nemo_skills.refusal("the sandbox failed; its log says how"))
        return self._counted(path, response)

    def refusal(self, head: RequestHead) -> HttpResponse | None:
        """By the head, before anything else is read: no token, a web page, or a body that a page could have sent."""
        if self._token is not None and not self._is_authorised(head):
            status, words = 401, "this endpoint wants the token"
        elif self._token is None and (foreign := origin.foreign(head.headers)) is not None:
            status, words = 403, foreign
        elif head.method == "POST" and not origin.is_json(head.headers):
            status, words = 415, origin.WRONG_TYPE
        else:
            return None
        path = head.path.partition("?")[0]
        refused = sandbox_fusion.refusal(words) if path == "/run_code" else nemo_skills.refusal(words)
        return self._counted(path, HttpResponse(status, refused))

    def _counted(self, path: str, response: HttpResponse) -> HttpResponse:
        """By the endpoint's name: what a client writes in its place is counted as one."""
        named = next((place for place in KEYED if path.startswith(f"{place}/")), path)
        known = any(named == route for _, route in self._table) or named in KEYED
        self._box.metrics.requests[named if known else "other", response.status] += 1
        return response

    async def _route(self, request: HttpRequest, path: str) -> HttpResponse:
        do = self._table.get((request.method, path))
        if do is not None:
            return await do(request)
        if request.method == "DELETE" and path.startswith("/sessions/"):
            return self._delete("IPython session", unquote(path[10:]), self._box.sessions.delete)
        if request.method == "DELETE" and path.startswith("/workspaces/"):
            return self._delete("workspace", unquote(path[12:]), self._box.workspaces.remove)
        if any(path == known for _, known in self._table):
            return HttpResponse(405, nemo_skills.refusal(f"{request.method} is not for {path}"))
        return HttpResponse(404, nemo_skills.refusal(f"there is nothing at {path}"))

    def _is_authorised(self, head: RequestHead) -> bool:
        assert self._token is not None
        given = head.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    # -- programs ---------------------------------------------------------------------------------------------------

    async def _execute(self, request: HttpRequest) -> HttpResponse:
        try:
            asked = nemo_skills.parse(request.json(), request.headers, self._box.languages, self._bounds)
            body, usage = await self._answer(asked, PROGRAM)
        except (BadRequest, BadName) as error:
            return HttpResponse(400, nemo_skills.refusal(str(error)))
        except ValueError as error:
            return HttpResponse(400, nemo_skills.refusal(f"the body is no JSON: {error}"))
        except SessionLost as error:
            return HttpResponse(409, {**nemo_skills.refusal(str(error)), "reason": "session_lost"})
        except Overloaded as error:
            return HttpResponse(503, {**nemo_skills.refusal(str(error)), "reason": "overloaded"}, {"Retry-After": "1"})
        headers = {"X-Muster-Node": HOST}
        if usage is not None:
            headers["X-Muster-Usage"] = json.dumps(usage.to_json())
        return HttpResponse(200, body, headers)

    async def _answer(
        self, asked: nemo_skills.ExecuteRequest, kind: int
    ) -> tuple[dict[str, Any], ResourceUsage | None]:
        if asked.language == IPYTHON:
            assert asked.session is not None
            cell = self._box.cell(
                asked.session, asked.code, asked.verbosity, asked.timeout, asked.max_output, asked.must_exist
            )
            # A cell is run to its end even if nobody waits for it any more: the session's state hangs on it.
            return nemo_skills.cell_answer(asked, await asyncio.shield(asyncio.ensure_future(cell))), None
        limits = {"memory_mb": asked.memory_mb} if asked.memory_mb else None
        stdin = asked.stdin.encode("utf-8", "surrogatepass")
        steps = self._box.languages.steps(
            asked.language, asked.code, stdin, (asked.timeout, asked.timeout), limits=limits
        )
        work = Program(steps, asked.max_output, asked.language, asked.workspace, within=asked.timeout)
        ended = (await self._box.run(work, kind))[-1]
        body = nemo_skills.answer(asked, ended)
        if asked.report:
            body |= {
                "usage": ended.usage.to_json(),
                "exit_code": ended.exit_code,
                "signal": ended.signal,
                "reason": ended.reason,
            }
        return body, ended.usage

    async def _run_code(self, request: HttpRequest) -> HttpResponse:
        try:
            asked = sandbox_fusion.parse(request.json(), self._box.languages, self._bounds)
        except ValueError as error:  # BadRequest is one
            return HttpResponse(400, sandbox_fusion.refusal(str(error)))
        limits = {"memory_mb": asked.memory_mb} if asked.memory_mb else None
        timeouts = asked.compile_timeout, asked.run_timeout
        steps = self._box.languages.steps(
            asked.language, asked.code, asked.stdin.encode(), timeouts, asked.files, limits
        )
        compiled = len(steps) > 1
        if asked.fetch:
            steps += (ProgramStep({"do": "fetch", "names": list(asked.fetch)}, FETCH_S),)
        try:
            ends = await self._box.run(Program(steps, self._bounds.output, asked.language), PROGRAM)
        except Overloaded as error:
            return HttpResponse(504, sandbox_fusion.refusal(str(error)))  # the status after which its clients try again
        files = _fetched(ends.pop()) if asked.fetch and len(ends) == len(steps) else {}
        return HttpResponse(200, sandbox_fusion.answer(ends, compiled, self._bounds.output, files))

    # -- batches ----------------------------------------------------------------------------------------------------

    async def _batch(self, request: HttpRequest) -> HttpResponse:
        try:
            body = request.json()
            if not isinstance(body, dict) or not isinstance(body.get("requests"), list):
                raise BadRequest('the body must be {"requests": [...]}')
        except ValueError as error:
            return HttpResponse(400, nemo_skills.refusal(str(error)))
        return HttpResponse(200, self._results(body["requests"]))

    async def _results(self, bodies: list[Any]) -> AsyncIterator[bytes]:
        """A line for each as it ends, as many at once as there are slots; an empty one while none does."""
        rest = iter(enumerate(bodies))
        running: set[asyncio.Task[dict[str, Any]]] = set()
        try:
            while True:
                for index, body in rest:
                    running.add(asyncio.ensure_future(self._one_of_batch(index, body)))
                    if len(running) >= self._box.settings.workers_max:
                        break
                if not running:
                    return
                done, running = await asyncio.wait(running, timeout=SIGN_OF_LIFE_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    yield b"\n"
                for task in done:
                    yield json.dumps(task.result()).encode() + b"\n"
        finally:
            for task in running:
                task.cancel()

    async def _one_of_batch(self, index: int, body: Any) -> dict[str, Any]:
        try:
            language = body.get("language", PYTHON) if isinstance(body, dict) else PYTHON
            if language == IPYTHON:
                raise BadRequest("a batch has no sessions: its programs run in any order")
            asked = nemo_skills.parse(
                {"language": PYTHON, **body} if isinstance(body, dict) else body, {}, self._box.languages, self._bounds
            )
            answer, usage = await self._answer(asked, BATCH)
        except (BadRequest, BadName, Overloaded) as error:
            return {"index": index, **nemo_skills.refusal(str(error))}
        return {"index": index, **answer, "usage": usage.to_json() if usage else None}

    # -- looking ----------------------------------------------------------------------------------------------------

    async def _health(self, request: HttpRequest) -> HttpResponse:
        pool = self._box.pool
        healthy = pool.zygote is not None and not self._box.admission.is_closed
        level = pool.level.to_json() if pool.level else {}
        body = {
            "status": "healthy" if healthy else "unhealthy",
            "isolation": level,
            "network": self._box.settings.network,
            "languages": self._box.languages.names,
            "session_backend": pool.session_backend,
            "preloaded": pool.zygote.facts["preloaded"] if pool.zygote else [],
            **self._box.load(),
            **({"gateway": self._gateway()} if self._gateway else {}),
        }
        return HttpResponse(200 if healthy else 503, body)

    async def _load(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, self._own_load())

    def _own_load(self) -> dict[str, Any]:
        problem = self._gateway()["problem"] if self._gateway else None
        return {**self._box.load(), **({"gateway_problem": problem[:PROBLEM_SHOWN]} if problem else {})}

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        load = self._box.load()
        names = ("slots", "running", "queued", "workers", "sessions", "workspaces", "uptime_s")
        level = self._box.pool.level.profile.level if self._box.pool.level else ""
        gauges = {name: load[name] for name in names}
        gauges["session_memory_bytes"] = self._box.sessions.memory
        if self._gateway is not None:
            gateway = self._gateway()
            gauges.update({"members": gateway["members"], "gateway_degraded": int(gateway["problem"] is not None)})
        text = self._box.metrics.text(gauges, self._box.counters(), {"host": HOST, "isolation": level})
        return HttpResponse(200, text)

    # -- sessions and workspaces ------------------------------------------------------------------------------------

    async def _sessions(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, {"sessions": self._box.sessions.listed(), "backend": "ipython"})

    # -- the cluster ------------------------------------------------------------------------------------------------

    async def _cluster_load(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, {"nodes": await self._of_all("/load", self._own_load)})

    async def _cluster_sessions(self, request: HttpRequest) -> HttpResponse:
        answers = await self._of_all("/sessions", lambda: {"sessions": self._box.sessions.listed()})
        merged = {name: one for answer in answers.values() for name, one in answer.get("sessions", {}).items()}
        missing = {where: answer["error"] for where, answer in answers.items() if "error" in answer}
        return HttpResponse(
            200, {"sessions": merged, "backend": "ipython", **({"missing": missing} if missing else {})}
        )

    async def _of_all(self, path: str, ours: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return await self._overview(path) if self._overview else {HOST: ours()}

    def _delete(self, what: str, name: str, remove: Any) -> HttpResponse:
        if remove(name):
            return HttpResponse(200, {"message": f"{what} {name} deleted successfully"})
        return HttpResponse(404, {"error": f"{what} {name} not found"})


def _fetched(ended: ProgramResult) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(ended.stdout.data)
        return found
    except ValueError:
        return {}
