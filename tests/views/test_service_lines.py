"""Lines of text about services."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.views.drawing import drawn
from tests.views.service_runs import busy, read
from tests.views.synthetic import load

from muster.views.service_lines import MAX_LISTED, bars, instance_lines, live_lines, load_line, ready_line
from muster.views.services import InstanceView, Load, ServiceView, services
from muster.views.terminal import Top, plain_line
from muster.views.timeline import build_timeline


def test_the_load_of_sandboxes_is_summed_and_the_busiest_node_named(tmp_path: Path) -> None:
    run = busy(tmp_path / "r")
    text = "\n".join(drawn(Top(run.paths, lambda: run.now + 1.0), 120))
    assert "service sandbox: 4 of 4 ready" in text
    assert "load: 10 of 32 busy, 5 queued, 25.0/s, 400 executed (8 failed)" in text
    assert "busiest gpu0002: 8 of 8 busy, 5 queued" in text
    assert "\n    ▁▂█▂" in text
    ascii_only = drawn(Top(run.paths, lambda: run.now + 1.0), encoding="ascii")
    assert "    .1#1" in ascii_only
    record = read(run, run.now + 1.0)
    assert plain_line(record, build_timeline(record)) == "running: 4 driver: sandbox 4/4: the driver runs"


def test_a_sandbox_whose_endpoint_has_a_problem_is_named_with_it_among_many(tmp_path: Path) -> None:
    run = busy(tmp_path / "r", 40)
    run.service("sandbox", 17, load=load(0, gateway_problem="members.json: version is -1"))
    run.write("running")
    (sandbox,) = services(read(run))
    assert list(instance_lines(sandbox)) == [
        f"gpu0017 (index 17): ready at {sandbox.instances[17].url}: members.json: version is -1"
    ]


@pytest.mark.parametrize("width", [20, 80, 200])
def test_the_load_of_a_thousand_nodes_takes_two_rows(tmp_path: Path, width: int) -> None:
    run = busy(tmp_path / "r", nodes=1000)
    lines = drawn(Top(run.paths, lambda: run.now + 1.0), width, 40)
    bars = [line for line in lines if line.startswith("    ") and set(line.strip()) <= set("▁▂▃▄▅▆▇█") and line.strip()]
    assert len(bars) == 2 and "█" in bars[0] and all(len(line) <= width for line in lines)


def instance(node_index: int, state: str = "ready", restarts: int = 0, load: Load | None = None) -> InstanceView:
    return InstanceView(node_index, f"n{node_index}", state, "", restarts, "", load)


def service(*instances: InstanceView, wanted: int = 3, gate: bool = True) -> ServiceView:
    return ServiceView("web", wanted, gate, instances)


def test_instances_that_are_not_ready_are_counted_by_state_with_their_hosts() -> None:
    some = service(instance(0), instance(1, "failed"), instance(2, "failed", restarts=2))
    assert ready_line(some) == "web: 1 of 3 ready, failed on n[1-2], 2 restarts"
    assert ready_line(service(instance(0), wanted=1)) == "web: 1 of 1 ready"


def test_the_load_of_a_single_node_is_not_repeated_as_the_busiest() -> None:
    loaded = Load(slots=8, running=3, executed=5, rate=1.25)
    assert load_line(service(instance(0, load=loaded))) == "load: 3 of 8 busy, 1.2/s, 5 executed"


def test_of_equally_busy_nodes_the_one_with_the_longer_queue_is_the_busiest() -> None:
    loads = [Load(8, 8, 1), Load(8, 8, 4), Load(8, 2, 0)]
    line = load_line(service(*(instance(number, load=load) for number, load in enumerate(loads))))
    assert line.endswith("; busiest n1: 8 of 8 busy, 4 queued")


def test_of_few_instances_all_are_listed_and_of_many_those_with_something_to_say() -> None:
    few = [instance(number) for number in range(MAX_LISTED)]
    assert len(list(instance_lines(service(*few)))) == MAX_LISTED
    many = [*few, instance(8), instance(9, restarts=1), instance(10, "starting")]
    assert list(instance_lines(service(*many))) == ["n9 (index 9): ready, 1 restart", "n10 (index 10): starting"]


def test_bars_are_full_for_busy_nodes_and_letters_without_unicode() -> None:
    loads = [Load(4, 0), Load(4, 2), Load(4, 4), Load(0, 1)]
    assert [line.plain for line in bars(loads, 80, ascii_only=False)] == ["    \u2581\u2585\u2588\u2588"]
    assert [line.plain for line in bars(loads, 80, ascii_only=True)] == ["    .5##"]


def test_one_bar_for_several_nodes_shows_the_busiest_of_them() -> None:
    loads = [Load(10, 10 if number == 13 else 0) for number in range(20)]
    rows = [line.plain.strip() for line in bars(loads, 9, ascii_only=True)]
    assert [len(row) for row in rows] == [5, 5] and "".join(rows) == "......#..."


def test_a_live_view_lists_a_limited_number_of_services() -> None:
    lines = [line.plain for line in live_lines([service(instance(0))] * (MAX_LISTED + 2), 80, ascii_only=True)]
    assert lines == ["service web: 1 of 3 ready"] * MAX_LISTED + ["and 2 more services"]
