"""The page of HTTP endpoints; they are checked against the routes in the sources."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.docs.reference.markdown import code, heading, table

from muster.sandbox.api import fusion_routes

SOURCES = Path(__file__).parents[3] / "src" / "muster"

UI = {
    ("GET", "/"): "The page with all runs.",
    ("GET", "/run/RUN"): "The page of a run.",
    ("GET", "/enter"): "Exchanges the link's `token` for a cookie.",
    ("GET", "/metrics"): "Metrics of the newest 50 runs; needs the cookie or the token of `--metrics-token`.",
    ("GET", "/assets/NAME"): "Scripts and styles.",
    ("GET", "/api/runs"): "All runs, newest first.",
    ("GET", "/api/runs/RUN"): "A run: nodes, phases, attempts, services, failures.",
    ("GET", "/api/runs/RUN/changes"): "Server-sent events: the run whenever it changes.",
    ("GET", "/api/runs/RUN/logs"): "The names and sizes of the logs.",
    ("GET", "/api/runs/RUN/log"): "A part of a log: `name`, `from` or `on`, `most`.",
    ("GET", "/api/runs/RUN/find"): "Lines of a log that contain `words`: `name`, `from`.",
    ("GET", "/api/runs/RUN/download"): "A log as a file: `name`.",
    ("POST", "/api/runs/RUN/stop"): "Stops the run.",
}
SANDBOX = {
    ("POST", "/execute"): "Run a program or a cell of a session, with NeMo-Skills' contract.",
    ("POST", "/run_code"): "Run a program, with SandboxFusion's contract.",
    ("POST", "/run_jupyter"): "Run the cells of a notebook, with SandboxFusion's contract.",
    ("POST", "/submit"): "Judge a model's answer by the tests in the request, with SandboxFusion's contract.",
    ("GET", "/list_datasets"): "SandboxFusion's datasets; those of a request only.",
    ("POST", "/list_ids"): "As in SandboxFusion.",
    ("POST", "/get_prompts"): "As in SandboxFusion.",
    ("POST", "/get_prompt_by_id"): "As in SandboxFusion.",
    ("POST", "/get_metrics"): "As in SandboxFusion.",
    ("POST", "/get_metrics_function"): "As in SandboxFusion.",
    ("POST", "/batch"): "Run many programs; results line by line as they end.",
    ("GET", "/health"): "State, isolation level and load.",
    ("GET", "/metrics"): "[Metrics](metrics.md).",
    ("GET", "/load"): "The load summary of this node.",
    ("GET", "/sessions"): "The sessions; at a gateway, of all nodes.",
    ("GET", "/cluster/load"): "The load of every node.",
    ("GET", "/cluster/sessions"): "The sessions of every node.",
    ("DELETE", "/sessions/ID"): "End a session.",
    ("DELETE", "/workspaces/ID"): "End the programs of a workspace and remove it.",
}


def sandbox_routes() -> set[tuple[str, str]]:
    """Return the sandbox's routes: pairs of method and path, and names below the paths that have some."""
    found = set()
    texts = [(SOURCES / "sandbox" / "api" / name).read_text() for name in ("routes.py", "fusion_routes.py")]
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if (
            isinstance(node, ast.Tuple)
            and len(node.elts) == 2
            and all(isinstance(one, ast.Constant) for one in node.elts)
        ):
            first, second = (one.value for one in node.elts if isinstance(one, ast.Constant))
            if str(second).startswith("/") and str(first).isupper():
                found.add((str(first), str(second)))
            elif str(first).startswith("/"):
                found |= {("DELETE", f"{path}/ID") for path in (str(first), str(second))}
    return found | {("POST", path) for path in fusion_routes.PATHS}


def ui_resources() -> set[str]:
    """Return the resources of a run in the web server: the keys of its table of handlers."""
    for node in ast.walk(ast.parse((SOURCES / "web" / "handlers.py").read_text())):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "handlers":
            assert isinstance(node.value, ast.Dict)
            return {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    raise AssertionError("the web server has no table of handlers")


def _table(endpoints: dict[tuple[str, str], str]) -> str:
    return table(("request", "meaning"), [[code(" ".join(route)), meaning] for route, meaning in endpoints.items()])


def page() -> str:
    """Return the text of the page."""
    ui = "`muster ui` listens on loopback. All but `/enter` need the cookie that it sets. The API may change."
    sandbox = "`muster sandbox serve`, and services of `kind: sandbox`. [The sandbox](sandbox.md) has the details."
    return (
        f"{heading('HTTP APIs')}\n## Web page\n\n{ui}\n\n{_table(UI)}\n\n## Sandbox\n\n{sandbox}\n\n{_table(SANDBOX)}\n"
    )
