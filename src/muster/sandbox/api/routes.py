"""The endpoints of the server. Every response of /execute has its three keys, whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable
from urllib.parse import unquote

from muster.sandbox import models
from muster.sandbox.api import fusion_routes, nemo_skills, sandbox_fusion
from muster.sandbox.api.fusion_routes import FusionRoutes
from muster.sandbox.api.large_bodies import LargeBodies
from muster.sandbox.api.nemo_skills import BadRequest, Bounds
from muster.sandbox.api.sender import Sender, sender_of
from muster.sandbox.engine.admission_queue import BATCH, PROGRAM, Overloaded
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.languages import IPYTHON, PYTHON
from muster.sandbox.engine.metrics import HOST
from muster.sandbox.engine.sessions import SessionLost
from muster.sandbox.engine.workspaces import BadName
from muster.sandbox.http import large_json, origin
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead
from muster.sandbox.models import Program, ResourceUsage

EMPTY_LINE_S = 2.0  # between empty lines of a batch in which no program ends, so that clients keep waiting
NAMED_PATHS = ("/sessions", "/workspaces")  # a name follows
PROBLEM_CHARACTERS = 500  # of a gateway's problem in the load summary: the run's status has one for every node
Overview = Callable[[str, "dict[str, str]"], Awaitable["dict[str, Any]"]]
Facts = Callable[[], "dict[str, Any]"]


class Routes:
    """The handler of requests. `token`: required in each of them; `overview`: sends a GET to all nodes; `gateway`:
    returns the state of this node's gateway."""

    def __init__(
        self, engine: Engine, token: str | None, overview: Overview | None = None, gateway: Facts | None = None
    ) -> None:
        self._engine, self._token, self._overview, self._gateway = engine, token, overview, gateway
        self._bodies = LargeBodies()
        settings = engine.settings
        self._bounds = Bounds(settings.max_timeout_s, settings.max_output, settings.memory_mb)
        self._table = {
            ("POST", "/execute"): self._execute,
            **FusionRoutes(engine, self._bounds, self._bodies, token is not None).table,
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
            if len(request.body) > large_json.LARGE:
                with contextlib.suppress(ValueError):  # the endpoint gets it again
                    await self._bodies.in_thread(request.json)
            response = await self._route(request, path)
        except Exception:  # a defect: the client gets a valid response, the log the traceback
            traceback.print_exc(file=sys.stderr)
            response = HttpResponse(500, models.refusal("the sandbox failed: see its log"))
        return self._counted(path, response)

    def refusal(self, head: RequestHead) -> HttpResponse | None:
        """Reject requests without the token, of web pages, or with a body that a page could send, by the head."""
        if self._token is not None and not self._is_authorized(head):
            status, reason = 401, "this endpoint requires the token"
        elif self._token is None and (foreign := origin.foreign(head.headers)) is not None:
            status, reason = 403, foreign
        elif head.method == "POST" and not origin.is_json(head.headers):
            status, reason = 415, origin.WRONG_TYPE
        else:
            return None
        path = head.path.partition("?")[0]
        refused = sandbox_fusion.refusal(reason) if path in fusion_routes.PATHS else models.refusal(reason)
        return self._counted(path, HttpResponse(status, refused))

    def _counted(self, path: str, response: HttpResponse) -> HttpResponse:
        """Count a response by its endpoint; other paths are one label, since clients choose them."""
        named = next((place for place in NAMED_PATHS if path.startswith(f"{place}/")), path)
        known = any(named == route for _, route in self._table) or named in NAMED_PATHS
        self._engine.metrics.requests[named if known else "other", response.status] += 1
        return response

    async def _route(self, request: HttpRequest, path: str) -> HttpResponse:
        do = self._table.get((request.method, path))
        if do is not None:
            return await do(request)
        if request.method == "DELETE" and path.startswith("/sessions/"):
            return self._delete(request, "IPython session", unquote(path[10:]), self._engine.sessions.delete)
        if request.method == "DELETE" and path.startswith("/workspaces/"):
            return self._delete(request, "workspace", unquote(path[12:]), self._engine.workspaces.remove)
        if any(path == known for _, known in self._table):
            return HttpResponse(405, models.refusal(f"{path} does not support {request.method}"))
        return HttpResponse(404, models.refusal(f"no endpoint at {path}"))

    def _is_authorized(self, head: RequestHead) -> bool:
        assert self._token is not None
        given = head.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    def _sender(self, request: HttpRequest) -> Sender:
        return sender_of(request, self._token is not None)

    # -- programs -----------------------------------------------------------------------------------------------------

    async def _execute(self, request: HttpRequest) -> HttpResponse:
        try:
            parsed = nemo_skills.parse(request.json(), request.headers, self._engine.languages, self._bounds)
            body, usage = await self._answer(parsed, PROGRAM, self._sender(request))
        except (BadRequest, BadName) as error:
            return HttpResponse(400, models.refusal(str(error)))
        except ValueError as error:
            return HttpResponse(400, models.refusal(f"the body is not JSON: {error}"))
        except SessionLost as error:
            return HttpResponse(409, {**models.refusal(str(error)), "reason": "session_lost"})
        except Overloaded as error:
            refused = {**models.refusal(str(error)), "reason": "overloaded"}
            return HttpResponse(error.status, refused, {"Retry-After": str(self._engine.admission.retry_after_s)})
        headers = {"X-Muster-Node": HOST}
        if usage is not None:
            headers["X-Muster-Usage"] = json.dumps(usage.to_json())
        return HttpResponse(200, await self._bodies.encoded(body), headers)

    async def _answer(
        self, parsed: nemo_skills.ExecuteRequest, kind: int, sender: Sender
    ) -> tuple[dict[str, Any], ResourceUsage | None]:
        if parsed.language == IPYTHON:
            assert parsed.session is not None
            name = models.owned_name(parsed.session, sender.owner)
            options = parsed.verbosity, parsed.timeout, parsed.max_output, parsed.must_exist
            cell = self._engine.cell(name, parsed.code, *options, sender.client)
            # A cell runs to its end even if its client is lost: the state of the session depends on it.
            done = await asyncio.shield(asyncio.ensure_future(cell))
            return await self._bodies.translated([done], nemo_skills.cell_answer, parsed, done), None
        limits = {"memory_mb": parsed.memory_mb} if parsed.memory_mb else None
        stdin = parsed.stdin.encode("utf-8", "surrogatepass")
        steps = self._engine.languages.steps(
            parsed.language, parsed.code, stdin, (parsed.timeout, parsed.timeout), limits=limits
        )
        work = Program(
            steps, parsed.max_output, parsed.language, parsed.workspace, parsed.timeout, sender.owner, sender.client
        )
        ended = (await self._engine.run(work, kind))[-1]
        body = await self._bodies.translated([ended], nemo_skills.answer, parsed, ended)
        if parsed.report:
            body |= {
                "usage": ended.usage.to_json(),
                "exit_code": ended.exit_code,
                "signal": ended.signal,
                "reason": ended.reason,
            }
        return body, ended.usage

    # -- batches ------------------------------------------------------------------------------------------------------

    async def _batch(self, request: HttpRequest) -> HttpResponse:
        try:
            body = request.json()
            if not isinstance(body, dict) or not isinstance(body.get("requests"), list):
                raise BadRequest('the body must be {"requests": [...]}')
        except ValueError as error:
            return HttpResponse(400, models.refusal(str(error)))
        return HttpResponse(200, self._results(body["requests"], self._sender(request)))

    async def _results(self, bodies: list[Any], sender: Sender) -> AsyncIterator[bytes]:
        """Run as many programs as there are slots; yield a line for each as it ends, and empty ones in between."""
        rest = iter(enumerate(bodies))
        running: set[asyncio.Task[dict[str, Any]]] = set()
        try:
            while True:
                for index, body in rest:
                    running.add(asyncio.ensure_future(self._one_of_batch(index, body, sender)))
                    if len(running) >= self._engine.settings.workers_max:
                        break
                if not running:
                    return
                done, running = await asyncio.wait(running, timeout=EMPTY_LINE_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    yield b"\n"
                for task in done:
                    body = await self._bodies.encoded(task.result())
                    yield (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n"
        finally:
            for task in running:
                task.cancel()

    async def _one_of_batch(self, index: int, body: Any, sender: Sender) -> dict[str, Any]:
        try:
            language = body.get("language", PYTHON) if isinstance(body, dict) else PYTHON
            if language == IPYTHON:
                raise BadRequest("a batch cannot use sessions: its programs run in any order")
            fields = {"language": PYTHON, **body} if isinstance(body, dict) else body
            parsed = nemo_skills.parse(fields, {}, self._engine.languages, self._bounds)
            answer, usage = await self._answer(parsed, BATCH, sender)
        except (BadRequest, BadName, Overloaded) as error:
            return {"index": index, **models.refusal(str(error))}
        except Exception:  # a defect: the other programs of the batch go on
            traceback.print_exc(file=sys.stderr)
            return {"index": index, **models.refusal("the sandbox failed: see its log")}
        return {"index": index, **answer, "usage": usage.to_json() if usage else None}

    # -- state --------------------------------------------------------------------------------------------------------

    async def _health(self, request: HttpRequest) -> HttpResponse:
        pool = self._engine.pool
        healthy = pool.zygote is not None and not self._engine.admission.is_closed
        level = pool.level.to_json() if pool.level else {}
        body = {
            "status": "healthy" if healthy else "unhealthy",
            "isolation": level,
            "network": self._engine.settings.network,
            "languages": self._engine.languages.names,
            "session_backend": pool.session_backend,
            "preloaded": pool.zygote.facts["preloaded"] if pool.zygote else [],
            **self._engine.load(),
            **({"gateway": self._gateway()} if self._gateway else {}),
        }
        return HttpResponse(200 if healthy else 503, body)

    async def _load(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, self._own_load())

    def _own_load(self) -> dict[str, Any]:
        problem = self._gateway()["problem"] if self._gateway else None
        return {**self._engine.load(), **({"gateway_problem": problem[:PROBLEM_CHARACTERS]} if problem else {})}

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        load = self._engine.load()
        names = ("slots", "running", "queued", "workers", "sessions", "workspaces", "uptime_s")
        level = self._engine.pool.level.profile.level if self._engine.pool.level else ""
        gauges = {name: load[name] for name in names}
        gauges["session_memory_bytes"] = self._engine.sessions.memory
        if self._gateway is not None:
            gateway = self._gateway()
            gauges.update({"members": gateway["members"], "gateway_degraded": int(gateway["problem"] is not None)})
        text = self._engine.metrics.text(gauges, self._engine.counters(), {"host": HOST, "isolation": level})
        return HttpResponse(200, text)

    # -- sessions and workspaces --------------------------------------------------------------------------------------

    async def _sessions(self, request: HttpRequest) -> HttpResponse:
        owner = self._sender(request).owner
        return HttpResponse(200, {"sessions": self._engine.sessions.listed(owner), "backend": "ipython"})

    # -- the cluster --------------------------------------------------------------------------------------------------

    async def _cluster_load(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, {"nodes": await self._ask_all("/load", self._own_load)})

    async def _cluster_sessions(self, request: HttpRequest) -> HttpResponse:
        sender = self._sender(request)
        listed = self._engine.sessions.listed(sender.owner)
        answers = await self._ask_all("/sessions", lambda: {"sessions": listed}, sender.headers)
        merged = {name: one for answer in answers.values() for name, one in answer.get("sessions", {}).items()}
        missing = {where: answer["error"] for where, answer in answers.items() if "error" in answer}
        return HttpResponse(
            200, {"sessions": merged, "backend": "ipython", **({"missing": missing} if missing else {})}
        )

    async def _ask_all(
        self, path: str, own: Callable[[], dict[str, Any]], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        return await self._overview(path, headers or {}) if self._overview else {HOST: own()}

    def _delete(self, request: HttpRequest, what: str, name: str, remove: Any) -> HttpResponse:
        if "\0" not in name and remove(models.owned_name(name, self._sender(request).owner)):
            return HttpResponse(200, {"message": f"{what} {name} deleted successfully"})
        return HttpResponse(404, {"error": f"{what} {name} not found"})
