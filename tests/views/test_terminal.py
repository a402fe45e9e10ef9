"""The live view for terminals: what it shows of runs of any size, and that nothing hostile reaches the screen."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from tests.views.drawing import drawn
from tests.views.synthetic import HOSTILE, START, SyntheticRun, hostile_run, large_run, load

from muster.views.record import RunReader
from muster.views.terminal import BringUpView, Top, View, plain_line
from muster.views.timeline import build_timeline


def gathering(root: Path) -> SyntheticRun:
    run = SyntheticRun(root, nodes=6)
    run.tell("run", state="gathering")
    for node_index in (0, 1, 4):
        run.node(node_index, "arrived", 1.0)
    run.node(0, "starting")
    run.write("gathering")
    return run


def test_who_is_missing_is_named_and_every_node_has_its_cell(tmp_path: Path) -> None:
    lines = drawn(Top(gathering(tmp_path / "train").paths, lambda: START + 60.0))
    assert lines[0].startswith("train  gathering  1 min 00.0 s  6 nodes")
    assert "missing: gpu[0002-0003,0005]" in lines
    assert any("◓◐○○◐○" in line for line in lines)
    assert any("○ launching 3" in line and "◐ arrived 2" in line for line in lines)


def test_without_unicode_letters_take_the_place_of_signs(tmp_path: Path) -> None:
    lines = drawn(BringUpView(gathering(tmp_path / "train").paths, lambda: START + 60.0), encoding="ascii")
    assert any("raooao" in line for line in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10), (20, 5)])
def test_a_thousand_nodes_fit_any_screen(tmp_path: Path, width: int, height: int) -> None:
    lines = drawn(Top(large_run(tmp_path / "r").paths), width, height)
    assert len(lines) <= height and all(len(line) <= width for line in lines)


def test_a_cell_for_many_nodes_shows_the_lost_one_among_them(tmp_path: Path) -> None:
    lines = drawn(Top(large_run(tmp_path / "r").paths), width=60)
    assert sum(line.count("✕") for line in lines) == 3  # two cells, and the key to them
    assert any("each cell is" in line for line in lines)


def test_the_driver_s_last_lines_take_the_room_that_is_left(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.write("running")
    Path(run.attempt.driver_log).write_text("".join(f"step {n}\n" for n in range(500)))
    lines = drawn(Top(run.paths, lambda: run.now + 5.0), height=30)
    assert "step 499" in lines[-1] and len(lines) in (28, 29)  # the last line of a screen stays free


def test_a_run_without_updates_is_marked(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.write("running")
    assert "no update" not in "\n".join(drawn(Top(run.paths, lambda: run.now + 20.0)))
    assert "no update for 5 min" in "\n".join(drawn(Top(run.paths, lambda: run.now + 300.0)))


def test_nothing_hostile_moves_the_cursor(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "r")
    record = RunReader(run.paths).read()
    shown = "\n".join(
        [*drawn(Top(run.paths), 200, 100), *drawn(BringUpView(run.paths)), plain_line(record, build_timeline(record))]
    )
    assert HOSTILE[0] in shown
    assert [char for char in shown if not char.isprintable() and char != "\n"] == []


def test_a_picture_of_it_is_made_for_the_documentation(tmp_path: Path, images: Path) -> None:
    run = SyntheticRun(tmp_path / "train-20260101T120000-ab12", nodes=252, spares=4)
    run.brings_up(slow=40)
    run.loses(17)
    run.tell("run", state="gathering")
    for node_index in range(250):
        if run.roles[node_index] != "excluded":
            run.node(node_index, "stopping" if node_index in (3, 4, 99) else "arrived", 0.01, role="waiting")
    run.write("gathering")
    Path(run.attempt.driver_log).write_text("".join(f"step {n}: loss {4.2 - n / 100:.3f}\n" for n in range(90, 100)))
    picture = pictured(Top(run.paths, lambda: run.now + 2.5), images / "top.svg", height=30)
    assert "gathering" in picture


def test_a_picture_of_services_and_their_load_is_made_too(tmp_path: Path, images: Path) -> None:
    run = SyntheticRun(tmp_path / "train-20260101T120000-ab12", nodes=64, services=("sandbox", "judge"))
    run.brings_up()
    for node_index in range(64):
        busy = min(8, (node_index * node_index) % 11)
        run.service(
            "sandbox", node_index, load=load(busy, queued=2 * (busy == 8), rate=4.5 * busy, executed=900 + 30 * busy)
        )
    run.service("judge", 7, "restarting", after=31.0, restarts=1, reason="was ended by signal 9")
    run.write("running")
    Path(run.attempt.driver_log).write_text("".join(f"step {n}: reward {n / 100:.3f}\n" for n in range(40, 45)))
    picture = pictured(Top(run.paths, lambda: run.now + 2.5), images / "top-services.svg", height=18)
    assert "busiest" in picture


def pictured(view: View, path: Path, height: int) -> str:
    """The view as an SVG that needs no network."""
    console = Console(record=True, width=120, height=height, file=io.StringIO(), force_terminal=True)
    console.print(view)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = console.export_svg(title="muster top", unique_id=f"muster-{path.stem}")
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # they would come over the network
    path.write_text(picture)
    assert "url(http" not in picture
    return picture
