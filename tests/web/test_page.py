"""`muster ui` in a real browser, over real runs."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.browser import Page, another_origin, needs_browser
from tests.running import MusterCommand, wait_for
from tests.views.synthetic import HOSTILE, SyntheticRun, hostile_run, large_run, load
from tests.web.conftest import Site

from muster.rundir import write_json

pytestmark = needs_browser

STATE = "document.querySelector('header .state')?.textContent"
FIRST_RUN = "document.querySelector('td a').textContent"
GRID = "[...document.querySelectorAll('.grid button')].map(cell => cell.title)"


def enter(page: Page, site: Site, path: str = "/") -> None:
    """Come in by a link, then go to a page."""
    page.go(site.link())
    page.wait_for("location.pathname === '/' && document.querySelector('h1') !== null", "the list of runs")
    if path != "/":
        page.go(site.origin + path)


def test_a_live_run_is_seen_from_its_start_to_its_end_without_a_reload(
    page: Page, site: Site, muster: MusterCommand, images: Path
) -> None:
    setup = "[ $MUSTER_RANK != 1 ] || until [ -e come ]; do sleep 0.1; done"
    command = ["bash", "-c", "echo the driver speaks; until [ -e go ]; do sleep 0.1; done; echo the end"]
    process = muster.start(*muster.local_args("--setup", setup, "--", *command, nodes=3))
    run = wait_for("the run", muster.run_dirs)[0].name
    enter(page, site)
    page.wait_for(f"document.body.innerText.includes({run!r})")
    page.run("document.querySelector('td a').click()")
    page.wait_for(f"{STATE} === 'gathering' && {GRID}.length === 3")
    page.run("window.sameDocument = true")
    page.wait_for("document.querySelector('.waits').textContent.includes('waiting for nodes: node-1')")
    (muster.cwd / "come").touch()
    page.wait_for(f"{STATE} === 'running' && {GRID}.every(title => title.endsWith(': driver'))")
    page.wait_for("document.querySelector('.log').textContent.includes('the driver speaks')")
    (muster.cwd / "go").touch()
    page.wait_for(f"{STATE} === 'succeeded'")
    page.wait_for("document.querySelector('.log').textContent.includes('the end')")
    process.communicate(timeout=180)
    assert page.run("window.sameDocument === true")
    page.wait_for("document.querySelector('header').textContent.includes('the driver exited with 0')")
    page.wait_for(f"{GRID}.every(title => title.endsWith(': driver'))")  # not a grid of nodes that are gone
    page.size(1280, 1400)
    page.screenshot(images / "ui-run.png")
    assert page.errors() == []


def test_a_failed_run_shows_the_end_of_the_failed_node_s_log(page: Page, site: Site, muster: MusterCommand) -> None:
    setup = "[ $MUSTER_RANK != 1 ] || { echo 'module cuda is not there'; exit 5; }"
    assert muster.local("--setup", setup, "--", "true").returncode == 125
    enter(page, site, f"/run/{muster.run_dir().name}")
    page.wait_for(f"{STATE} === 'failed'")
    page.wait_for("document.querySelector('pre')?.textContent.includes('module cuda is not there')")
    page.run("document.querySelectorAll('.grid button')[1].click()")
    page.wait_for("document.body.innerText.includes('node-1 (index 1)')")
    page.run("document.querySelector('.details button').click()")
    page.wait_for("document.querySelector('.log').textContent.includes('module cuda is not there')")
    assert page.errors() == []


def test_stopping_a_run_asks_first_and_then_does_it(
    page: Page, site: Site, muster: MusterCommand, images: Path
) -> None:
    process = muster.start(*muster.local_args("--stop-grace", "5s", "--", "bash", "-c", "echo up; exec sleep 1000"))
    run = muster.wait_for_driver("up")
    enter(page, site, f"/run/{run.name}")
    page.wait_for(f"{STATE} === 'running'")
    button = "document.querySelector('header button.danger')"
    page.run(f"{button}.focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('dialog').open")
    page.screenshot(images / "ui-stop.png")
    assert page.run("document.activeElement.textContent") == "Keep it running"
    page.press("Enter")
    page.wait_for("!document.querySelector('dialog').open")
    assert not (run / "attempt-0" / "stop.json").exists()
    page.run(f"{button}.click()")
    page.run("document.querySelector('dialog button.danger').click()")
    page.wait_for(f"{STATE} === 'stopped'")
    page.wait_for(f"{button} === null || {button}.hidden")
    process.communicate(timeout=180)
    assert "in muster ui" in muster.status()["end_reason"]
    assert page.errors() == []


@pytest.mark.parametrize("path", ["/", "/run/large", "/api/runs", "/enter?token=wrong"])
def test_without_the_link_a_browser_sees_nothing(page: Page, site: Site, path: str) -> None:
    large_run(site.runs_dir / "large", nodes=8)
    page.go(site.origin + path)
    assert (
        page.text().strip() == "Open the link that `muster ui` printed. It works once; press Enter there for another."
    )


HOSTILE_PAGE = """<!doctype html><title>evil</title><script>
const stop = "%s";
async function attack() {
  const results = [];
  for (const options of [{mode: "no-cors"}, {mode: "cors"}, {mode: "no-cors", headers: {"Content-Type": "text/plain"}},
                         {mode: "cors", headers: {"X-Muster-Key": "guess"}}]) {
    try {
      const answer = await fetch(stop, {method: "POST", credentials: "include", ...options});
      results.push(answer.status + answer.type);
    } catch (error) { results.push("refused"); }
  }
  const form = document.createElement("form"); form.method = "POST"; form.action = stop; form.target = "frame";
  const frame = document.createElement("iframe"); frame.name = "frame";
  document.body.append(frame, form);
  form.submit();
  await new Promise(done => { frame.onload = done; setTimeout(done, 3000); });
  return results;
}
</script><body>"""


def test_another_origin_cannot_stop_a_run_though_the_browser_sends_the_cookie(
    page: Page, site: Site, muster: MusterCommand
) -> None:
    process = muster.start(*muster.local_args("--stop-grace", "1s", "--", "bash", "-c", "echo up; exec sleep 1000"))
    run = muster.wait_for_driver("up")
    enter(page, site)
    with another_origin(HOSTILE_PAGE % f"{site.origin}/api/runs/{run.name}/stop") as address:
        page.go(address)
        results = page.run("attack()")
        assert all(re.fullmatch("0opaque|refused", result) for result in results), results
    assert not (run / "attempt-0" / "stop.json").exists()
    assert muster.status()["state"] == "running"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)


def test_a_log_of_a_gigabyte_is_opened_searched_and_walked_through(page: Page, site: Site, images: Path) -> None:
    run = large_run(site.runs_dir / "train", nodes=8)
    line = b"step 000000: loss 1.0000, and so on for a while to fill the line until it has its hundred bytes .....\n"
    with open(run.attempt.driver_log, "wb") as file:
        file.write(line * 20_000)
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nTraceback (most recent call last):\n  RuntimeError: out of memory\n" + line * 200)
    enter(page, site, "/run/train")
    page.wait_for("document.querySelector('.log').textContent.includes('step 000000')")
    cookie = site.entered()
    for query in ("from=-262144", "from=536870912", "from=0"):
        status, _, body = site.ask(f"/api/runs/train/log?name=attempt-0/logs/driver.log&{query}", **cookie)
        assert status == 200 and len(body) < 3_000_000
    page.run("[...document.querySelectorAll('#logs button')].find(b => b.textContent === 'start').click()")
    page.wait_for("document.querySelector('#logs [role=status]').textContent.startsWith('bytes 0 to 26')")
    find = "document.querySelector('#logs input[type=search]')"
    page.run(f"{find}.value = 'runtimeerror'; {find}.dispatchEvent(new Event('change'))")
    page.wait_for("document.querySelector('.log').textContent.includes('RuntimeError: out of memory')")
    page.wait_for("document.querySelector('#logs [role=status]').textContent === '1 lines found in 100 % of the log'")
    page.run("document.querySelector('.log .found').focus()")
    page.press("Enter")  # a found line leads to its place, also by keyboard
    page.wait_for("document.querySelector('.log').textContent.startsWith('  RuntimeError: out of memory')")
    assert page.run("performance.memory.usedJSHeapSize") < 300_000_000
    assert page.errors() == []


def test_a_thousand_nodes_are_a_page_that_can_be_used(page: Page, site: Site, images: Path) -> None:
    large_run(site.runs_dir / "pretrain-20260101T120000-cd34")
    enter(page, site)
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    page.go(site.origin + "/run/pretrain-20260101T120000-cd34")
    page.wait_for(f"{GRID}.length === 1000")
    page.run("document.querySelector('.grid button').focus()")
    page.press("ArrowDown")
    page.press("ArrowUp")
    page.press("Enter")
    page.wait_for("document.body.innerText.includes('gpu0000 (index 0)')")
    page.size(1280, 1000)
    page.screenshot(images / "ui-1000.png")
    assert page.errors() == []


def test_hostile_texts_are_texts_on_every_page(page: Page, site: Site) -> None:
    hostile_run(site.runs_dir / "<img src=x onerror=boom()>")
    enter(page, site)
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    assert HOSTILE[0] in page.text()
    page.run("document.querySelector('td a').click()")
    page.wait_for("document.querySelector('.log')?.textContent.includes('boom()')")
    text = page.text()
    assert HOSTILE[0] in text and "</script><script>boom()</script>" in text
    assert "\u202e" not in page.run("document.body.textContent") and "\x1b" not in page.run("document.body.textContent")
    assert page.run("typeof boom") == "undefined" and page.run("document.querySelectorAll('img').length") == 0
    assert page.errors() == []


def test_the_list_is_sorted_filtered_and_searched(page: Page, site: Site, images: Path) -> None:
    large_run(site.runs_dir / "pretrain-20260101T120000-cd34", nodes=64)
    failing = large_run(site.runs_dir / "eval-20260102T090000-12ab", nodes=8)
    failing.ends(3)
    enter(page, site)
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    page.size(1280, 420)
    page.screenshot(images / "ui-list.png")
    lines = "[...document.querySelectorAll('td.id')].map(cell => cell.clientHeight)"
    assert page.run(f"Math.max(...{lines}) < 40")  # nothing is wrapped
    zone = "new Date(0).toLocaleString(undefined, {timeZoneName: 'short'}).split(' ').pop()"
    times = "[...document.querySelectorAll('td:nth-child(6)')]"
    assert page.run(f"{times}.length === 2 && {times}.every(cell => cell.textContent.endsWith({zone}))")
    page.run("document.querySelector('[data-key=nodes]').focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('[aria-sort=ascending]').textContent === 'nodes \u25b4'")
    assert page.run(FIRST_RUN).startswith("eval") and page.run("document.activeElement.dataset.key") == "nodes"
    page.press("Enter")
    page.wait_for(f"{FIRST_RUN}.startsWith('pretrain')")
    page.run("window.s = document.querySelector('select'); s.value = 'failed'; s.dispatchEvent(new Event('change'))")
    page.wait_for(f"document.querySelectorAll('tbody tr').length === 1 && {FIRST_RUN}.startsWith('eval')")
    page.run("s.value = ''; s.dispatchEvent(new Event('change'))")
    page.press("/")
    page.wait_for("document.activeElement.type === 'search'")
    page.run("document.activeElement.value = 'eval'; document.activeElement.dispatchEvent(new Event('input'))")
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    assert page.errors() == []


def begun(run: SyntheticRun, ago: float) -> float:
    """As if it had been asked for just now; returns when its job began."""
    run.now = time.time() - ago
    asked = run.now - 4.0
    write_json(run.paths.submission, {"asked": asked, "time": asked + 0.5, "backend": "slurm", "job_id": "4711"})
    return run.now - 1.0


def test_services_and_their_load_are_seen_as_they_change(page: Page, site: Site, images: Path) -> None:
    run = SyntheticRun(site.runs_dir / "train-20260101T120000-ab12", nodes=6, services=("sandbox", "tensorboard"))
    job_start = begun(run, 40.0)

    def write(state: str) -> None:
        run.write(state, timings={"job_start": job_start}, updated=time.time())

    run.brings_up()
    run.lines = [line for line in run.lines if '"driver_start"' not in line and '"running"' not in line]
    run.lines = [line for line in run.lines if '"service": "sandbox", "rank": 4' not in line]
    run.services["sandbox"][4]["state"] = "starting"
    write("starting")
    enter(page, site, f"/run/{run.paths.run_id}")
    page.wait_for("document.querySelector('.waits')?.textContent.startsWith('waiting for sandbox on gpu0004')")
    page.wait_for("document.querySelector('#services .ready').textContent === '5 of 6 ready'")
    assert "gpu0004: services" in page.run(GRID)
    page.run("[...document.querySelectorAll('#services button')][2].focus()")
    focused = page.run("document.activeElement.getAttribute('aria-label')")
    log = Path(run.attempt.service_log("sandbox", "gpu0004", 0))
    log.parent.mkdir(parents=True)
    log.write_text("warming workers\n")
    for rank in range(6):
        run.service("sandbox", rank, load=load(2 * rank % 9, queued=3 * (rank == 4)))
    run.service("tensorboard", 5, "restarting", restarts=1, reason="exited with 3")
    run.tell("run", state="running")
    run.tell("driver_start")
    write("running")
    page.wait_for("document.querySelector('#services .ready').textContent === '6 of 6 ready'")
    page.wait_for(f"{GRID}.every(title => title.endsWith(': driver'))")
    page.wait_for("document.body.innerText.includes('21 of 48 busy, 3 queued')")
    page.wait_for("document.body.innerText.includes('restarting exited with 3')")
    assert page.run("[...document.querySelectorAll('#services meter')].map(meter => meter.value)")[:2] == [21, 8]
    assert page.run("document.activeElement.getAttribute('aria-label')") == focused
    page.run("document.querySelector('[aria-label=\"log of sandbox on gpu0004\"]').focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('.log').textContent.includes('warming workers')")
    page.run("document.querySelectorAll('.grid button')[4].click()")
    page.wait_for("document.querySelector('.details').textContent.includes('sandbox: ready, 8 of 8 busy')")
    page.run("scrollTo(0, 0)")
    page.size(1280, 1250)
    page.screenshot(images / "ui-services.png")
    assert os.path.exists(run.paths.metrics)
    assert page.errors() == []


def test_everything_is_reachable_by_keyboard(page: Page, site: Site, images: Path) -> None:
    page.dark()
    run = SyntheticRun(site.runs_dir / "live", nodes=3, services=("sandbox",))
    job_start = begun(run, 30.0)
    run.brings_up()
    run.write("running", timings={"job_start": job_start}, updated=time.time())
    enter(page, site)
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    assert "Find runs" in tabbed(page, until="live")
    page.press("Enter")
    page.wait_for(f"location.pathname === '/run/live' && {STATE} === 'running'")
    page.wait_for("document.querySelector('#logs option') !== null")
    reached = tabbed(page, until="Resolved job")
    for name in (
        "Skip to the contents",
        "Stop\u2026",
        "gpu0000: driver",
        "all",
        "Find nodes",
        "zoom in",
        "log of sandbox on gpu0002",
        "Log",
        "earlier",
        "follow",
        "Find lines in the log",
        "download",
        "Contents of the log",
        "Resolved job",
    ):
        assert name in reached, (name, reached)
    assert any(name.startswith("Timeline of the nodes") for name in reached)
    page.run("document.querySelector('header button.danger').focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('dialog').open")
    page.press("Escape")
    page.wait_for("!document.querySelector('dialog').open")
    assert not os.path.exists(run.attempt.stop_request)
    page.screenshot(images / "ui-dark.png")
    assert page.errors() == []


def tabbed(page: Page, until: str) -> list[str]:
    """What gets the focus, press by press, up to this: as it would be read out."""
    name = """(() => { const at = document.activeElement; return at.getAttribute("aria-label")
        ?? at.labels?.[0]?.textContent.trim() ?? at.textContent.slice(0, 40); })()"""
    found: list[str] = []
    while until not in found:
        assert len(found) < 60, found
        page.press("Tab")
        found.append(str(page.run(name)))
    return found


def test_what_has_the_focus_keeps_it_while_a_live_run_goes_on(page: Page, site: Site) -> None:
    run = SyntheticRun(site.runs_dir / "live", nodes=3)
    run.now = time.time() - 20.0
    run.brings_up()
    ray = {"address": "n1:6379", "dashboard": {"host": "n1", "port": 24005}, "tuning": {}}
    run.write("running", timings={"job_start": run.now - 19.0}, updated=time.time(), ray=ray)
    enter(page, site, "/run/live")
    page.wait_for(f"{STATE} === 'running'")
    page.wait_for("document.querySelector('header').textContent.includes('ssh -N -L 24005:127.0.0.1:24005 -J')")
    page.run("[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'all').focus()")
    waits = page.run("document.querySelector('.waits').textContent")
    page.wait_for(f"document.querySelector('.waits').textContent !== {waits!r}", "the seconds to go on")
    run.tell("note", text="something new")
    run.write("running", timings={"job_start": run.now - 19.0}, updated=time.time(), ray=ray)
    page.wait_for("document.body.innerText.includes('something new')")
    assert page.run("document.activeElement.textContent") == "all"
    assert page.errors() == []
