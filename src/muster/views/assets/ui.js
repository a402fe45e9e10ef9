// `muster ui`: the list of runs, and the page of one.
"use strict";
(function () {
  const el = Muster.el, seconds = Muster.seconds, place = document.getElementById("page");
  const key = document.querySelector('meta[name="muster-key"]').content;
  const wanted = location.pathname.match(/^\/run\/([^/]+)$/);

  async function ask(path) {
    const answer = await fetch(path);
    if (answer.status === 403) throw new Error("The session of this page has expired. " + await answer.text());
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  function showError(error) {
    const text = error instanceof TypeError ? "`muster ui` does not answer: is it still running?" : error.message;
    let box = document.getElementById("trouble");
    if (!box) { box = el("p", { id: "trouble", class: "card", role: "alert" }); place.prepend(box); }
    box.textContent = text;
  }
  const clearError = () => document.getElementById("trouble")?.remove();

  // -- the list -------------------------------------------------------------------------------------------------

  const PARTS = ["pending", "lost", "launching", "driver", "finishing"].map(name => ({ name }));
  const BAR_TITLES = { launching: "starting", lost: "earlier cycles" };

  function spark(run, longest) {
    const canvas = el("canvas", { role: "img", class: "spark" });
    canvas.title = run.bar.map(([phase, ms]) => (BAR_TITLES[phase] ?? phase) + " " + seconds(ms)).join(", ");
    canvas.setAttribute("aria-label", canvas.title);
    const g = Muster.sized(canvas, 160, 14), fills = Muster.fills(PARTS);
    const own = run.bar.reduce((sum, [, ms]) => sum + ms, 0) || 1;
    const long = 160 * Math.max(.1, Math.log1p(own / 1000) / Math.log1p(longest / 1000));
    let x = 0;
    for (const [phase, ms] of run.bar) {
      const width = Math.max(1, long * ms / own);
      g.fillStyle = fills[PARTS.findIndex(part => part.name === phase)];
      g.fillRect(x, 1, Math.min(width, 160 - x), 12); x += width;
    }
    return canvas;
  }

  // The columns of the list, with the value by which each is sorted.
  const COLUMNS = [
    { name: "run", kind: "id", value: run => run.run }, { name: "state", kind: "id", value: run => run.state },
    { name: "nodes", right: true, value: run => run.nodes ?? 0 }, { name: "time" }, { name: "took", right: true, value: run => run.took },
    { name: "requested", kind: "id", value: run => run.asked }, { name: "command", value: run => run.command }];
  const FILTERS = [["", "all states"], ["live", "live"], ["succeeded", "succeeded"], ["failed", "failed"], ["stopped", "stopped"]];

  async function list() {
    const find = el("input", { type: "search", placeholder: "run, state or command", "aria-label": "Find runs", oninput: () => draw() });
    const state = el("select", { "aria-label": "State", onchange: () => draw() }, FILTERS.map(([value, title]) => el("option", { value }, title)));
    const rows = el("div", { class: "wide" });
    let runs = [], order = { name: "requested", down: true };
    place.replaceChildren(el("header", { class: "card" }, el("h1", {}, "Runs"), el("div", { class: "tools" }, find, state)), el("section", {}, rows));
    function head(column) {
      if (!column.value) return { title: column.name };
      const chosen = order.name === column.name, arrow = chosen ? (order.down ? " \u25be" : " \u25b4") : "";
      const sort = () => { order = { name: column.name, down: chosen && !order.down }; draw(); };
      return { ...column, sort: chosen ? (order.down ? "descending" : "ascending") : null,
        title: el("button", { "data-key": column.name, onclick: sort }, column.name + arrow) };
    }
    function chosenRuns() {
      const words = find.value.toLowerCase(), value = COLUMNS.find(column => column.name === order.name).value;
      const compare = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (order.down ? -1 : 1);
      return runs.filter(run => (!state.value || run.state === state.value || state.value === "live" && run.live)
        && [run.run, run.state, run.command, run.job_id].join(" ").toLowerCase().includes(words)).sort(compare);
    }
    function draw() {
      const shown = chosenRuns(), focused = document.activeElement?.dataset.key;
      const longest = Math.max(...shown.map(run => run.bar.reduce((sum, [, ms]) => sum + ms, 0)), 1000);
      rows.replaceChildren(shown.length ? Muster.table(COLUMNS.map(head),
        shown.map(run => [el("a", { href: "/run/" + encodeURIComponent(run.run), "data-key": "run " + run.run }, run.run),
          el("span", { class: "state " + run.state }, run.state + (run.exit_code ? " " + run.exit_code : "")), run.nodes ?? "",
          spark(run, longest), seconds(run.took), Muster.when(run.asked), el("code", {}, run.command)]))
        : el("p", { class: "faint" }, runs.length ? "No run matches." : "No runs yet. `muster run` starts one."));
      if (focused) [...rows.querySelectorAll("[data-key]")].find(element => element.dataset.key === focused)?.focus();
    }
    async function load() {
      try {
        const found = await ask("/api/runs");
        if (JSON.stringify(found) !== JSON.stringify(runs) || !rows.firstChild) { runs = found; draw(); }
        clearError();
      } catch (error) { showError(error); }
    }
    await load();
    setInterval(() => { if (!document.hidden) load(); }, 2000);
    document.addEventListener("keydown", event => {
      if (event.key === "/" && document.activeElement !== find) { find.focus(); event.preventDefault(); }
    });
  }

  // -- one run --------------------------------------------------------------------------------------------------

  class RunPage {
    constructor(name) {
      this.name = name; this.address = "/api/runs/" + encodeURIComponent(name);
      this.logs = new Muster.Logs(name);
      this.chosen = null;
      this.stop = el("button", { class: "danger", onclick: () => this.askToStop() }, "Stop\u2026");
      this.head = el("div"); this.grid = el("div", { class: "grid" }); this.details = el("div", { class: "details", role: "status" });
      this.key = el("div"); this.failures = el("div"); this.pictures = el("div"); this.services = el("div"); this.columns = el("div"); this.events = el("div"); this.spec = el("div");
      this.dialog = el("dialog", { "aria-labelledby": "ask" });
      this.shown = {}; this.unfolded = new Set();
      this.pictures.id = "timeline"; this.events.id = "events";
      const sections = [["nodes", "nodes"], ["timeline", "timeline"], ["logs", "logs"], ["events", "events"]];
      place.replaceChildren(el("nav", { class: "tools", "aria-label": "Sections" }, el("a", { href: "/" }, "\u2190 all runs"),
        sections.map(([id, title]) => el("a", { href: "#" + id }, title))), this.head, this.failures,
        el("section", { id: "nodes" }, this.title = el("h2", {}, "Nodes"), this.grid, this.key, this.details), this.pictures, this.services, this.logs.element,
        this.columns, this.events, this.spec, this.dialog);
      this.grid.addEventListener("keydown", event => this.walk(event));
    }

    async begin() {
      await this.load();
      this.connect();
      document.addEventListener("visibilitychange", () => document.hidden ? this.disconnect() : this.connect());
      setInterval(() => this.tick(), 1000);
    }

    // A browser has few connections to one server: only a visible page keeps one open.
    connect() {
      if (this.source || document.hidden) return;
      this.source = new EventSource(this.address + "/changes");
      this.source.addEventListener("changed", () => this.scheduleLoad());
      this.source.onerror = () => { if (this.source.readyState === EventSource.CLOSED) { this.disconnect(); setTimeout(() => this.connect(), 3000); } };
    }
    disconnect() { this.source?.close(); this.source = null; }

    scheduleLoad() { this.waiting ??= setTimeout(() => { this.waiting = null; this.load(); }, 200); }

    async load() {
      try {
        this.show(await ask(this.address));
        await this.logs.list();
        clearError();
      } catch (error) { showError(error); }
    }

    // Replace a part only when its data changed, so that selection and scroll position are kept.
    part(name, where, value, make) {
      const now = JSON.stringify(value);
      if (this.shown[name] === now) return;
      this.shown[name] = now;
      where.replaceChildren(...[make()].flat().filter(Boolean));
    }

    // Restore the focus to an element that is replaced while it has it.
    keepingFocus(where, make) {
      const key = where.contains(document.activeElement) ? document.activeElement.dataset.key : null;
      make();
      if (key) [...where.querySelectorAll("[data-key]")].find(element => element.dataset.key === key)?.focus();
    }

    openLog(name) { this.logs.choose(name).catch(showError); this.logs.element.scrollIntoView(); }

    show(model) {
      this.model = model; this.loaded = performance.now();
      document.title = model.run + ": " + model.state;
      const attempt = model.attempts[model.attempts.length - 1];
      this.stop.hidden = !model.live;
      this.stop.disabled = model.stopping === "";
      this.stop.textContent = model.stopping === "" ? "Stopping\u2026" : "Stop\u2026";
      const { now, wall, ...rest } = model;
      this.part("head", this.head, [rest.state, rest.reason, rest.waits, rest.exit_code, rest.attempts.length, attempt.cycles.length,
        attempt.cycles.map(c => c.driver[0]), rest.stopping, rest.silent === null, rest.dashboard, model.live ? 0 : wall], () => this.makeHead(model));
      this.part("bad", this.failures, model.failures, () => Muster.failures(model));
      this.showGrid(model, attempt);
      if (!this.timelines || this.timelines.length !== model.attempts.length) {
        const made = Muster.timelines(model);
        this.timelines = made.timelines; this.pictures.replaceChildren(made.element);
      } else this.timelines.forEach((timeline, at) => timeline.show(model, model.attempts[at]));
      this.keepingFocus(this.services, () => this.part("services", this.services, model.services,
        () => Muster.services(model, log => this.openLog(log), this.unfolded)));
      this.part("columns", this.columns, [model.attempts.map(a => [a.cycles.map(c => [c.reason, c.driver, model.live ? c.path.length : c.path]), a.slow]), model.live ? 0 : model.node_seconds],
        () => Muster.columns(model));
      this.part("happened", this.events, model.happenings, () => model.happenings.length ? el("section", {}, el("h2", {}, "Events"),
        Muster.table([{ title: "after", right: true }, "event", ""], model.happenings.slice(-15).reverse().map(([ms, name, text]) =>
          [seconds(ms), name.replaceAll("_", " "), text]))) : null);
      this.part("spec", this.spec, model.spec, () => Muster.spec(model));
    }

    makeHead(model) {
      const head = Muster.head(model, this.stop);
      if (model.stopping) head.append(el("p", { role: "alert" }, "The run could not be stopped: " + model.stopping));
      if (model.dashboard) {
        head.append(el("p", {}, "Ray's dashboard: ", model.dashboard.command
          ? ["on your own machine ", el("code", {}, model.dashboard.command), ", then "] : "",
        el("a", { href: model.dashboard.address, rel: "noreferrer", target: "_blank" }, model.dashboard.address),
        el("span", { class: "faint" }, " (its token is in the file ray-token in the run directory)")));
      }
      return head;
    }

    // -- the nodes ----------------------------------------------------------------------------------------------

    // The phase that a cell shows: the present one, or of a run that has ended the last one before its end.
    phaseOf(model, node) {
      const ends = ["finishing", "gone"], phases = node[4].filter((_, at) => at % 2 === 0);
      return model.live ? node[5] : phases.findLast(phase => !ends.includes(model.phases[phase].name)) ?? node[5];
    }

    showGrid(model, attempt) {
      this.title.textContent = model.live ? "Nodes" : "Nodes, before the end of the run";
      this.grid.classList.toggle("many", attempt.nodes.length > 200);
      if (this.grid.childElementCount !== attempt.nodes.length) {
        this.grid.replaceChildren(...attempt.nodes.map((node, at) => el("button", { tabindex: at ? -1 : 0, onclick: () => this.choose(at) })));
      }
      const counts = new Map();
      attempt.nodes.forEach((node, at) => {
        const index = this.phaseOf(model, node), phase = model.phases[index];
        const cell = this.grid.children[at], title = node[1] + ": " + phase.title;
        counts.set(index, (counts.get(index) || 0) + 1);
        if (cell.title !== title) {
          cell.title = title; cell.setAttribute("aria-label", title); cell.textContent = phase.glyph;
          cell.style.background = "var(--" + phase.name + ")";
        }
      });
      this.part("key", this.key, [...counts], () => el("ul", { class: "legend" }, [...counts].sort((a, b) => a[0] - b[0]).map(([phase, count]) =>
        el("li", {}, model.phases[phase].glyph + " " + model.phases[phase].title + " ", el("b", {}, count)))));
      if (this.chosen !== null) this.showDetails();
    }

    choose(at) {
      this.chosen = this.chosen === at ? null : at;
      [...this.grid.children].forEach((cell, index) => {
        cell.tabIndex = index === at ? 0 : -1; cell.setAttribute("aria-pressed", String(index === this.chosen));
      });
      this.shown.details = null;
      this.showDetails();
    }

    showDetails() {
      const attempt = this.model.attempts[this.model.attempts.length - 1], node = this.chosen === null ? null : attempt.nodes[this.chosen];
      if (!node) { this.details.replaceChildren(); return; }
      const serving = this.model.services.flatMap(service => service.instances.filter(one => one.node_index === node[0]).map(one => [service.name, one]));
      this.part("details", this.details, [node, serving, this.model.live ? 0 : attempt.end], () => {
        const [rank, host, role, state, flat] = node, spans = [];
        for (let i = 0; i < flat.length; i += 2) spans.push([this.model.phases[flat[i]].title, flat[i + 1], i + 2 < flat.length ? flat[i + 3] : attempt.end]);
        const log = "attempt-" + attempt.number + "/logs/node-" + String(rank).padStart(4, "0") + ".log";
        return [el("p", {}, el("b", {}, host), " (index " + rank + "): " + role + ", " + state + " ",
          el("button", { onclick: () => this.openLog(log) }, "log")),
        serving.length ? el("ul", {}, serving.map(([name, one]) => el("li", {}, name + ": " + one.state + (one.load ? ", " + one.load.running
          + " of " + one.load.slots + " busy " : " "), el("button", { onclick: () => this.openLog(one.log) }, "log")))) : null,
        Muster.table(["phase", { title: "from", right: true }, { title: "took", right: true }],
          spans.filter(([, a, b]) => b - a >= 1).map(([title, a, b]) => [title, seconds(a), seconds(b - a)]))];
      });
    }

    walk(event) {
      const cells = [...this.grid.children], at = cells.indexOf(document.activeElement);
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.rowLength(cells), ArrowUp: -this.rowLength(cells) }[event.key];
      if (at < 0 || !step || !cells[at + step]) return;
      cells[at].tabIndex = -1; cells[at + step].tabIndex = 0; cells[at + step].focus();
      event.preventDefault();
    }
    rowLength(cells) { return Math.max(1, cells.filter(cell => cell.offsetTop === cells[0].offsetTop).length); }

    // -- the clock of a live run, and its stop --------------------------------------------------------------------

    tick() {
      const model = this.model;
      if (!model?.live || document.hidden) return;
      const now = model.now + performance.now() - this.loaded, attempt = model.attempts[model.attempts.length - 1];
      const waits = this.head.querySelector(".waits");
      if (waits && model.waits) waits.textContent = Muster.waitsFor(model, now);
      attempt.end = now;
      this.timelines?.[this.timelines.length - 1].grow(now);
    }

    askToStop() {
      const close = () => this.dialog.close();
      const cancel = el("button", { onclick: close, autofocus: true }, "Keep it running");
      this.dialog.replaceChildren(el("h2", { id: "ask" }, "Stop this run?"), el("p", {}, el("b", {}, this.name),
        ": its driver gets SIGTERM and a grace period, then all its processes are stopped on all nodes. This cannot be undone."),
      el("div", { class: "tools" }, cancel, el("button", { class: "danger", onclick: () => { close(); this.doStop(); } }, "Stop the run")));
      this.dialog.showModal();
      cancel.focus();
    }

    async doStop() {
      this.stop.disabled = true;
      try {
        const answer = await fetch(this.address + "/stop", { method: "POST", headers: { "X-Muster-Key": key } });
        if (!answer.ok) throw new Error(await answer.text());
      } catch (error) { showError(error); }
      this.load();
    }
  }

  if (wanted) new RunPage(decodeURIComponent(wanted[1])).begin();
  else list().catch(showError);
})();
