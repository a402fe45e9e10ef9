"""nginx's configuration for a node's gateway, as a pure function of what it is to do. Nothing here runs anything.

Every word that goes in is checked first (members.py, settings.py): addresses, numbers, and a token of few characters.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass

from muster.sandbox.api.nemo_skills import broke_off, unreached
from muster.sandbox.gateway.peers import PeerList
from muster.sandbox.http.codec import BODY_LIMIT
from muster.sandbox.http.origin import LOOPBACK_HOST, WRONG_HOST, WRONG_ORIGIN
from muster.sandbox.http.server import HEAD_TIMEOUT_S, STALL_TIMEOUT_S

CONNECT_S = 2
FAIL_S = 5  # for which a node that could not be reached gets no stateless work
READ_MORE_S = 60  # beyond the longest program: waiting, killing, answering
NOBODY = PeerList()
KEPT = 64  # idle connections to the nodes
GENERATION_HEADER = "X-Muster-Configuration"


@dataclass(frozen=True)
class GatewayPlan:
    """What a gateway is to do. `listen` and `own` are ADDRESS:PORT: of its clients, and of this node's own server."""

    listen: str
    own: str
    token: str
    place: str  # a directory of its own
    longest_s: float
    members: PeerList = NOBODY
    own_first: bool = False  # what names no session stays on this node: its programs share one scratch
    user: str | None = None  # "NAME GROUP", when we are root
    connections: int = 4096
    generation: int = 0  # of the configuration: tells which one nginx serves


def find_nginx() -> str | None:
    """Where it is; administrators' directories are often not in a user's PATH."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin")


def render(plan: GatewayPlan) -> str:
    """The whole file."""
    members = plan.members.addresses or (plan.own,)
    first = members.index(plan.own) if plan.own in members else 0
    # Each node begins with itself: the first requests of all nodes must not meet at one.
    anybody = "\n".join(
        f"        server {one} max_fails=1 fail_timeout={FAIL_S}s;" for one in (*members[first:], *members[:first])
    )
    keyed = "\n".join(f"        server {one} max_fails=0;" for one in members)
    user = f"user {plan.user};\n" if plan.user else ""
    return f"{user}{_top(plan)}{_upstreams(plan, anybody, keyed)}{_server(plan)}}}\n"


def _top(plan: GatewayPlan) -> str:
    place = plan.place
    return f"""daemon off;
worker_processes 1;
pid {place}/nginx.pid;
lock_file {place}/nginx.lock;
error_log stderr warn;
events {{ worker_connections {plan.connections}; }}
http {{
    access_log off;
    server_tokens off;
    default_type application/json;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    # A connection is one request's: one that is kept could be closed by a reload just when the next request is sent.
    keepalive_timeout 0;
    client_header_timeout {HEAD_TIMEOUT_S:g}s;
    client_body_timeout {STALL_TIMEOUT_S:g}s;
    client_max_body_size {BODY_LIMIT >> 20}m;
    client_body_buffer_size 1m;
    merge_slashes off;
    # As origin.py has it: the host is loopback, and the origin, if a browser names one, is this endpoint.
    map $http_host $muster_is_host {{ "" yes; "~*^{LOOPBACK_HOST}$" yes; default no; }}
    map "$http_origin $http_host" $muster_is_origin {{ "~^ " yes; "~*^http://([^ ]+) \\1$" yes; default no; }}
    map $http_x_session_id $muster_header_key {{ "" $http_x_workspace_id; default $http_x_session_id; }}
    # A path has its key behind the name; everything else has it in a header.
    map $uri $muster_key {{ "~^/(sessions|workspaces)/(?<muster_id>.+)$" $muster_id; default $muster_header_key; }}
    # The last node that was tried. Behind it nginx names its list of nodes when there is nobody left in it.
    map $upstream_addr $muster_node {{
        "" "";
        "~(?<muster_last>[^ ,]+:[0-9]+)(, muster_[a-z]+)?$" $muster_last;
        default "any node";
    }}
    map $upstream_bytes_sent $muster_was_sent {{ "~[1-9]" yes; default no; }}
"""


def _upstreams(plan: GatewayPlan, anybody: str, keyed: str) -> str:
    kept = f"        keepalive {KEPT};\n        keepalive_timeout 30s;\n"
    return f"""    upstream muster_any {{
        least_conn;
{anybody}
{kept}    }}
    upstream muster_keyed {{
        hash $muster_key consistent;
{keyed}
{kept}    }}
    upstream muster_own {{
        server {plan.own} max_fails=0;
{kept}    }}
"""


def _server(plan: GatewayPlan) -> str:
    pool = "muster_own" if plan.own_first else "muster_any"
    return f"""    server {{
        listen {plan.listen} backlog=4096;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host sandbox;
        proxy_set_header Authorization "Bearer {plan.token}";
        proxy_connect_timeout {CONNECT_S}s;
        proxy_send_timeout 60s;
        proxy_read_timeout {int(plan.longest_s) + READ_MORE_S}s;
        # Nobody was told anything yet, or nobody is told again: a program that may have been sent is never sent twice.
        proxy_next_upstream error timeout;
        # Answers pass as they come. (With buffers, nginx 1.22 can cut a long one short when it is reloaded.)
        proxy_buffering off;
        proxy_buffers 16 64k;
        proxy_buffer_size 64k;
        add_header X-Muster-Member $muster_node always;
        recursive_error_pages on;
        error_page 418 = @keyed;
        error_page 502 504 = @broken;
        error_page 413 = @too_long;
        if ($muster_is_host = no) {{ return 403 '{_words(WRONG_HOST, "")}'; }}
        if ($muster_is_origin = no) {{ return 403 '{_words(WRONG_ORIGIN, "")}'; }}

        location / {{
            if ($muster_key != "") {{ return 418; }}
            proxy_pass http://{pool};
        }}
        location = /batch {{ proxy_pass http://{pool}; }}
        location ~ ^/(sessions|workspaces)/. {{ return 418; }}
        location = /sessions {{ proxy_pass http://muster_own/cluster/sessions; }}
        location = /health {{ proxy_pass http://muster_own; }}
        location = /metrics {{ proxy_pass http://muster_own; }}
        location = /load {{ proxy_pass http://muster_own; }}
        location /cluster/ {{ proxy_pass http://muster_own; }}
        # In a file: a word of a configuration has at most 4,096 bytes, which 155 members fill.
        location = /gateway {{
            alias {gateway_file(plan.place, plan.generation)};
            add_header {GENERATION_HEADER} {plan.generation};
        }}
        # A session's node is the members' matter alone: if it cannot be reached, no other one is asked.
        location @keyed {{ proxy_next_upstream off; proxy_pass http://muster_keyed; }}
        location @broken {{
            if ($muster_was_sent = no) {{ return 503 '{_words(unreached("$muster_node"), "unreachable")}'; }}
            return 502 '{_words(broke_off("$muster_node"), "lost")}';
        }}
        location @too_long {{ return 413 '{_words(f"the body is too long: at most {BODY_LIMIT >> 20} MB", "")}'; }}
    }}
"""


def gateway_file(place: str, generation: int) -> str:
    """Where nginx finds its answer to GET /gateway; each configuration has one of its own."""
    return f"{place}/gateway-{generation}.json"


def gateway_answer(plan: GatewayPlan) -> str:
    return json.dumps({"gateway": "nginx", **plan.members.to_json()})


def _words(words: str, reason: str) -> str:
    """An answer with the contract's three keys. nginx takes one backslash of two away."""
    return (
        f'{{"error": "{words}", "process_status": "error", "stdout": "", "stderr": "{words}\\\\n", '
        f'"reason": "{reason}"}}'
    )


def own_address(host: str, port: int) -> str:
    """Where a server that listens there is reached from its own node."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
