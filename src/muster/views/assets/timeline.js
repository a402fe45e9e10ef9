// The interactive timeline: its picture with search, zoom and keys.
"use strict";
(function () {
  const el = Muster.el, LABEL = Muster.LABEL;

  Muster.Timeline = class extends Muster.Picture {
    constructor(model, attempt) {
      super();
      this.axis = el("canvas", { "aria-hidden": "true" });
      this.canvas = el("canvas", { "aria-hidden": "true" });
      this.spacer = el("div");
      this.rowsBox = el("div", { class: "rows" }, this.canvas, this.spacer);
      this.tip = el("div", { class: "tip", hidden: true });
      this.announcement = el("div", { class: "announcement", role: "status", "aria-live": "polite" },
        "Drag to zoom, double-click for all. Keys: arrows, + and -, 0 for all, Enter opens a group.");
      this.box = el("div", { class: "timeline", tabindex: "0", role: "application", "aria-label":
        "Timeline of the nodes. Up and down choose a row, left and right move in time, plus and minus zoom, 0 shows all, Enter opens a group." },
        this.axis, this.rowsBox, this.tip);
      this.search = el("input", { type: "search", placeholder: "node or index", "aria-label": "Find nodes",
        oninput: () => { this.layout(); } });
      this.presets = el("span", { class: "tools" });
      this.legend = el("div");
      this.element = el("div", {},
        el("div", { class: "tools" }, this.presets, this.search,
          el("button", { title: "zoom in", "aria-label": "zoom in", onclick: () => this.zoom(.5) }, "+"),
          el("button", { title: "zoom out", "aria-label": "zoom out", onclick: () => this.zoom(2) }, "\u2212")),
        this.box, this.legend, this.announcement);
      this.open = new Set(); this.chosen = -1;
      this.listen();
      this.show(model, attempt);
      new ResizeObserver(() => this.draw()).observe(this.box);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    }

    // -- data ---------------------------------------------------------------------------------------------------

    show(model, attempt) {
      this.model = model; this.attempt = attempt;
      this.path = attempt.cycles.flatMap(cycle => cycle.path);
      this.onPath = new Set(this.path.map(step => step[1]).filter(rank => rank !== null));
      this.used = new Set();
      for (const node of attempt.nodes) for (let i = 0; i < node[4].length; i += 2) this.used.add(node[4][i]);
      this.extendTo(Math.max(attempt.end, attempt.start + 1));
      this.showPresets();
      this.restyle();
    }

    // Extend the current spans to `end`; a view of the whole timeline stays one.
    grow(end) {
      const cycle = this.attempt.cycles[this.attempt.cycles.length - 1], step = cycle.path[cycle.path.length - 1];
      if (step && cycle.driver[0] === null) step[3] = end;
      this.extendTo(end);
      this.draw();
    }

    extendTo(end) {
      const whole = this.to === undefined || this.to === this.end;
      if (this.to === undefined) this.from = this.attempt.start;
      this.end = end;
      if (whole || this.to > end) this.to = end;
    }

    // Replace the buttons only when they change: one of them may have the focus.
    showPresets() {
      const attempt = this.attempt, known = JSON.stringify(attempt.cycles.map(cycle => [cycle.start, cycle.driver[0]]));
      if (known === this.known) return;
      this.known = known;
      const preset = (title, action) => el("button", { onclick: action }, title);
      const cycles = attempt.cycles.slice(-6).map(cycle => preset(cycle.number ? "to cycle " + cycle.number : "to the driver", () => {
        const from = cycle.path.length ? cycle.path[0][2] : cycle.start, to = cycle.driver[0] ?? this.end;
        this.showRange(from, to + (to - from) * .05);
      }));
      this.presets.replaceChildren(preset("all", () => this.showRange(this.attempt.start, this.end)), ...cycles);
    }

    // -- navigation ---------------------------------------------------------------------------------------------

    showRange(from, to) {
      const least = Math.max(1, (this.end - this.attempt.start) / 1e5);
      this.from = Math.max(this.attempt.start, Math.min(from, this.end - least));
      this.to = Math.min(this.end, Math.max(to, this.from + least));
      this.draw();
    }

    zoom(by, around) {
      const middle = around ?? (this.from + this.to) / 2;
      this.showRange(middle - (middle - this.from) * by, middle + (this.to - middle) * by);
    }

    listen() {
      const box = this.rowsBox, place = event => {
        const rect = box.getBoundingClientRect();
        return [event.clientX - rect.left, event.clientY - rect.top + box.scrollTop];
      };
      box.addEventListener("scroll", () => this.draw());
      box.addEventListener("pointerdown", event => {
        const [x] = place(event);
        if (event.button === 0 && x > LABEL) { this.drag = [x, x]; box.setPointerCapture(event.pointerId); }
      });
      box.addEventListener("pointermove", event => {
        const [x, y] = place(event);
        if (this.drag) { this.drag[1] = x; this.draw(); }
        this.hover(x, y, event);
      });
      box.addEventListener("pointerup", event => {
        const [x, y] = place(event), drag = this.drag;
        this.drag = null;
        if (drag && Math.abs(drag[1] - drag[0]) > 5) this.showRange(this.at(Math.min(...drag)), this.at(Math.max(...drag)));
        else { this.choose(this.rows.findIndex(r => y >= r.top && y < r.top + r.height)); this.enter(x < LABEL); }
      });
      box.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      box.addEventListener("dblclick", () => this.showRange(this.attempt.start, this.end));
      box.addEventListener("wheel", event => {
        const range = this.to - this.from;
        if (event.ctrlKey || event.metaKey) { event.preventDefault(); this.zoom(event.deltaY > 0 ? 1.25 : .8, this.at(place(event)[0])); }
        else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
          event.preventDefault();
          const by = (event.deltaX || event.deltaY) / this.width * range;
          this.showRange(Math.min(this.from + by, this.end - range), Math.min(this.from + by, this.end - range) + range);
        }
      }, { passive: false });
      this.box.addEventListener("keydown", event => {
        const range = this.to - this.from, by = range * .2;
        const move = way => { const from = Math.max(this.attempt.start, Math.min(this.from + way, this.end - range)); this.showRange(from, from + range); };
        const keys = {
          ArrowLeft: () => move(-by), ArrowRight: () => move(by), "+": () => this.zoom(.5), "=": () => this.zoom(.5),
          "-": () => this.zoom(2), "0": () => this.showRange(this.attempt.start, this.end), Enter: () => this.enter(true),
          ArrowDown: () => this.choose(this.chosen + 1), ArrowUp: () => this.choose(Math.max(0, this.chosen - 1)),
        };
        if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { keys[event.key](); event.preventDefault(); }
      });
    }

    choose(index) {
      if (index < 0 || index >= this.rows.length) return;
      this.chosen = index;
      const r = this.rows[index], box = this.rowsBox;
      if (r.top < box.scrollTop) box.scrollTop = r.top;
      else if (r.top + r.height > box.scrollTop + box.clientHeight) box.scrollTop = r.top + r.height - box.clientHeight;
      this.announcement.textContent = r.path ? this.path.filter(step => step[3] - step[2] >= 10)
        .map(step => step[4] + " " + Muster.seconds(step[3] - step[2])).join(", ") : r.node ? this.describe(r.node) : r.members.length + " nodes, " + r.members[0][1] + " to "
        + r.members[r.members.length - 1][1] + ": Enter opens or closes";
      this.draw();
    }

    describe(node) {
      const spans = this.spans(node).filter(([, a, b]) => b - a >= 10);
      return node[1] + " (index " + node[0] + "): " + spans.map(([phase, a, b]) =>
        this.model.phases[phase].title + " " + Muster.seconds(b - a)).join(", ");
    }

    enter(wanted) {
      const r = this.rows[this.chosen];
      if (!r || !r.members || !wanted) return;
      if (this.open.has(r.key)) this.open.delete(r.key); else this.open.add(r.key);
      this.layout();
    }

    hover(x, y, event) {
      const r = this.rows.find(r => y >= r.top && y < r.top + r.height), when = this.at(x);
      if (!r || x < LABEL || this.drag) { this.tip.hidden = true; return; }
      const within = node => this.spans(node).find(([, start, end]) => when >= start && when < end);
      let text;
      if (r.path) {
        const step = this.path.find(s => when >= s[2] && when < s[3]);
        text = step ? step[4] + "\n" + Muster.seconds(step[3] - step[2]) : "";
      } else if (r.node) {
        const span = within(r.node);
        if (!span) { this.tip.hidden = true; return; }
        const phase = this.model.phases[span[0]], step = this.path.find(s => s[1] === r.node[0] && when >= s[2] && when < s[3]);
        text = r.node[1] + ": " + phase.title + " " + Muster.seconds(span[2] - span[1]) + "\n" + phase.meaning
          + (step ? "\non the critical path: " + step[4] + ", " + Muster.seconds(step[3] - step[2]) : "");
      } else {
        const counts = new Map();
        for (const node of r.members) { const span = within(node); if (span) counts.set(span[0], (counts.get(span[0]) || 0) + 1); }
        text = [...counts].sort((a, b) => b[1] - a[1]).map(([phase, n]) => n + " " + this.model.phases[phase].title).join("\n");
      }
      this.tip.textContent = text; this.tip.hidden = !text;
      const rect = this.box.getBoundingClientRect();
      this.tip.style.left = Math.min(event.clientX - rect.left + 14, this.width - 220) + "px";
      this.tip.style.top = (event.clientY - rect.top + 14) + "px";
    }
  };
})();
