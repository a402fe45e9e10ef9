"""The report in a real browser: self-contained, at any size, by keyboard, and safe with hostile texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser import Browser, Page, needs_browser
from tests.views.synthetic import HOSTILE, SyntheticRun, hostile_run, large_run

from muster.views.record import RunReader
from muster.views.report import report

pytestmark = needs_browser


def written(run: SyntheticRun) -> str:
    path = Path(run.paths.root) / "report.html"
    path.write_text(report(RunReader(run.paths).read()))
    return path.as_uri()


def small_run(root: Path) -> SyntheticRun:
    run = SyntheticRun(root, nodes=4, services=("sandbox",))
    run.brings_up(slow=2)
    run.service("sandbox", 1, "restarting", after=20.0, restarts=1, reason="was ended by signal 9")
    run.service("sandbox", 1, after=2.0, restarts=1)
    run.ends()
    return run


def test_a_report_shows_its_parts_without_an_error_or_a_request(page: Page, tmp_path: Path, images: Path) -> None:
    page.go(written(small_run(tmp_path / "train-20260101T120000-ab12")))
    text = page.text()
    for part in (
        "Timeline",
        "Critical path to the driver",
        "Slowest nodes",
        "Requested resources",
        "waiting for sandbox on gpu0000",
        "4 of 4 ready, restarts: 1",
        "http://gpu0001:7001",
    ):
        assert part in text
    assert page.errors() == []
    assert [url for url in page.requests() if not url.startswith("file:")] == []
    page.size(1280, 1000)
    page.screenshot(images / "report.png")


def test_a_thousand_nodes_are_grouped_searchable_and_zoomable(page: Page, tmp_path: Path, images: Path) -> None:
    address = written(large_run(tmp_path / "pretrain-20260101T120000-cd34", services=("sandbox",)))
    page.go(address)
    page.wait_for("document.querySelector('.timeline canvas').width > 300")
    page.size(1280, 1000)
    page.screenshot(images / "report-1000.png")
    find = "document.querySelector('input[type=search]')"
    page.run(f"{find}.value = 'gpu0412'; {find}.dispatchEvent(new Event('input'))")
    assert page.run("document.querySelector('.announcement').textContent") == "1 node found"
    page.run("[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'to the driver').click()")
    rows = "document.querySelectorAll('#services tbody tr').length"
    assert page.run(rows) == 12 and "996 of 996 ready" in page.text()
    page.run("document.querySelector('#services summary').click()")
    page.wait_for(f"{rows} === 996")
    assert page.errors() == []


def test_the_timeline_can_be_used_by_keyboard(page: Page, tmp_path: Path) -> None:
    page.go(written(large_run(tmp_path / "r", nodes=100)))
    page.run("document.querySelector('.timeline').focus()")
    said = "document.querySelector('.announcement').textContent"
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert "gpu0000 (index 0): submitted 1.00 s, pending 29.0 s" in page.run(said)
    for _ in range(30):
        page.press("ArrowDown")
    assert "Enter opens or closes" in page.run(said)
    height = "document.querySelector('.rows').scrollHeight"
    before = page.run(height)
    page.press("Enter")
    assert page.run(height) > before
    assert page.errors() == []


def test_hostile_texts_are_shown_and_nothing_of_them_runs(page: Page, tmp_path: Path) -> None:
    page.go(written(hostile_run(tmp_path / "r")))
    text = page.text()
    assert HOSTILE[0] in text and "</script><script>boom()</script>" in text
    assert page.run("typeof boom") == "undefined"
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.errors() == []


@pytest.mark.parametrize("look", ["dark", "colourless"])
def test_phases_differ_in_the_dark_and_without_colour(
    browser: Browser, tmp_path: Path, images: Path, look: str
) -> None:
    page = browser.page()
    getattr(page, look)()
    page.go(written(small_run(tmp_path / "train-20260101T120000-ab12")))
    # Phases that lie beside each other differ in their pattern or, without one, clearly in their grey.
    tell = """(() => { const phases = ["pending", "launching", "arrived", "starting", "services", "joined", "driver",
        "finishing"];
      const fills = Muster.fills(phases.map(name => ({name})));
      return fills.map(fill => { const c = document.createElement("canvas"); c.width = c.height = 16;
        const g = c.getContext("2d"); g.fillStyle = fill; g.fillRect(0, 0, 16, 16);
        const d = g.getImageData(0, 0, 16, 16).data, greys = [];
        for (let i = 0; i < d.length; i += 4) greys.push((d[i] * 3 + d[i+1] * 6 + d[i+2]) / 10);
        const brightest = Math.max(...greys);
        return greys.map(grey => grey < brightest - 20 ? "#" : " ").join(""); }); })()"""
    patterns = page.run(tell)
    assert len(set(patterns)) == len(patterns)
    page.screenshot((images if look == "dark" else tmp_path) / f"report-{look}.png")
    assert page.errors() == []
    page.close()


def test_where_scripts_do_not_run_the_summary_is_read(page: Page, tmp_path: Path) -> None:
    page.ask("Emulation.setScriptExecutionDisabled", value=True)
    page.go(written(small_run(tmp_path / "r")))
    snapshot = page.ask("Accessibility.getFullAXTree")["nodes"]
    texts = " ".join(str(node.get("name", {}).get("value", "")) for node in snapshot)
    assert "waiting for sandbox on gpu0000" in texts
