"""`muster tunnel`: its target, and the command or address that it prints."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from tests.cli.invocation import Invoke, StartRun

from muster.cli.tunnel import _target
from muster.runs.tunnels import Tunnel


def status(*instances: tuple[str, str, str | None]) -> dict[str, Any]:
    entries = [{"host": host, "state": state, "url": url} for host, state, url in instances]
    return {"run": "r", "services": {"judge": {"instances": entries}}}


def test_a_service_is_reached_on_the_leader_s_node_if_it_is_there_else_on_the_first() -> None:
    one, two = ("n1", "ready", "http://10.0.0.1:7001"), ("n2", "ready", "http://10.0.0.2:7002")
    assert _target("judge", "n2", status(one, two)) == Tunnel("n2", 7002)
    assert _target("judge", "n9", status(one, two)) == Tunnel("n1", 7001)
    assert _target("judge", "n1", status(("n1", "starting", None), two)) == Tunnel("n2", 7002)


@pytest.mark.parametrize(("name", "words"), [("judge", "has no endpoint now"), ("other", "its services are judge")])
def test_a_service_without_an_endpoint_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(click.ClickException, match=words):
        _target(name, "n1", status(("n1", "restarting", None)))


def test_a_local_run_has_an_address_and_needs_no_tunnel(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train", ray={"address": "n0:6379", "dashboard": {"host": "n0", "port": 8265}})
    assert invoke("tunnel").out == invoke("tunnel", "train", "dashboard").out == "http://127.0.0.1:8265\n"
    assert invoke("tunnel", "7001").out == "http://127.0.0.1:7001\n"


def test_for_a_job_the_ssh_command_is_printed_without_a_terminal(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train", "slurm", hosts=("n0", "n1"))
    done = invoke("tunnel", "train", "7001", "--node", "1", "--local-port", "9000", "--login", "ann@login")
    assert (done.code, done.out, done.err) == (0, "ssh -N -L 9000:127.0.0.1:7001 -J ann@login n1\n", "")


def test_json_has_the_address_and_the_command(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train", "slurm", hosts=("n0", "n1"))
    found = json.loads(invoke("tunnel", "train", "7001", "--local-port", "9000", "--login", "ann@login", "--json").out)
    assert (found["run"], found["host"], found["port"], found["url"]) == ("train", "n0", 7001, "http://127.0.0.1:9000")
    assert found["command"] == ["ssh", "-N", "-L", "9000:127.0.0.1:7001", "-J", "ann@login", "n0"]


def test_json_of_a_local_run_has_no_command(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    found = json.loads(invoke("tunnel", "7001", "--json").out)
    assert (found["url"], found["command"]) == ("http://127.0.0.1:7001", None)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["train", "dashboard", "more"], 2, "give at most two arguments: RUN, and dashboard, a port or a service"),
        (["train"], 1, "train was started without --dashboard"),
        (["train", "70000"], 1, "70000 is not a port: ports range from 1 to 65535"),
        (["train", "judge"], 1, "'judge' is not a service of train (it has no services)"),
        (["other", "80"], 1, "no run or job other"),
        (["train", "80", "--node", "n9"], 2, "--node n9: train has nodes 0 to 1: n0, n1"),
    ],
)
def test_a_target_that_does_not_exist_is_refused(
    words: list[str], code: int, told: str, start_run: StartRun, invoke: Invoke
) -> None:
    start_run("train")
    done = invoke("tunnel", *words)
    assert (done.code, done.out) == (code, "") and told in done.err


def test_a_run_that_does_not_run_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train").publishes("finishing")
    done = invoke("tunnel", "train", "80")
    assert done.code == 1 and "train is ending" in done.err
