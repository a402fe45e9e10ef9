// The timeline as a picture: a bar per node and phase on a canvas. Many nodes are shown as groups, a group as the share
// of its nodes in each phase; nodes on the critical path, lost nodes and search results have separate rows.
"use strict";
(function () {
  const ROW = 18, GROUP = 34, AXIS = 42, MAX_SINGLE_ROWS = 48, GROUPS = 16, LABEL = Muster.LABEL = 150;

  // Subclasses provide model, attempt, end; box, axis, rowsBox, canvas, spacer, search, announcement.
  Muster.Picture = class {
    restyle() {
      this.fills = Muster.fills(this.model.phases);
      this.legend.replaceChildren(Muster.legend(this.model.phases, this.used));  // the patterns depend on the colours, too
      this.layout();
    }

    layout() {
      const nodes = this.attempt.nodes, wanted = this.search.value.trim().toLowerCase();
      const lost = this.model.phases.findIndex(phase => phase.name === "lost");
      const row = node => ({ node, height: ROW });
      if (wanted) {
        const found = nodes.filter(n => n[1].toLowerCase().includes(wanted) || String(n[0]) === wanted);
        this.rows = found.slice(0, 2000).map(row);
        this.announcement.textContent = found.length + (found.length === 1 ? " node" : " nodes") + " found";
      } else if (nodes.length <= MAX_SINGLE_ROWS) {
        this.rows = nodes.map(row);
      } else {
        const first = nodes.filter(n => this.onPath.has(n[0])).slice(0, 12);
        const gone = nodes.filter(n => n[5] === lost && !first.includes(n)).slice(0, 12);
        this.rows = [...first, ...gone].map(row);
        const size = Math.ceil(nodes.length / GROUPS);
        for (let at = 0; at < nodes.length; at += size) {
          const members = nodes.slice(at, at + size), key = this.attempt.number + ":" + at;
          this.rows.push({ members, key, height: GROUP });
          if (this.open.has(key)) this.rows.push(...members.map(row));
        }
      }
      if (!wanted && this.path.length) this.rows.unshift({ path: true, height: ROW + 6 });
      let top = 0;
      for (const r of this.rows) { r.top = top; top += r.height; }
      this.height = top;
      this.chosen = Math.min(this.chosen, this.rows.length - 1);
      this.draw();
    }

    // -- drawing ------------------------------------------------------------------------------------------------

    x(ms) { return LABEL + (ms - this.from) / (this.to - this.from) * (this.width - LABEL - 6); }
    at(x) { return this.from + (x - LABEL) / (this.width - LABEL - 6) * (this.to - this.from); }

    draw() {
      this.width = this.box.clientWidth;
      if (!this.width || !this.rows) return;
      this.style = getComputedStyle(document.documentElement);
      this.drawAxis();
      const most = Math.min(this.height, Math.max(120, window.innerHeight * .62));
      const g = Muster.sized(this.canvas, this.width, most);
      this.spacer.style.height = Math.max(0, this.height - most) + "px";
      const top = this.rowsBox.scrollTop;
      g.translate(0, -top);
      for (const [index, r] of this.rows.entries()) {
        if (r.top + r.height < top || r.top > top + most) continue;
        if (index === this.chosen) { g.fillStyle = this.colour("--code"); g.fillRect(0, r.top, this.width, r.height); }
        this.label(g, r);
        g.save(); g.beginPath(); g.rect(LABEL, r.top, this.width - LABEL, r.height); g.clip();
        if (r.path) this.steps(g, r); else if (r.node) this.bars(g, r); else this.shares(g, r);
        g.restore();
      }
      this.drawMarks(g, top, most);
    }

    colour(name) { return this.style.getPropertyValue(name).trim(); }

    label(g, r) {
      g.fillStyle = this.colour(r.members ? "--faint" : "--text");
      g.font = (r.path || r.node && this.onPath.has(r.node[0]) ? "600 " : "") + "12px system-ui, 'DejaVu Sans', sans-serif";
      g.textBaseline = "middle"; g.textAlign = "left";
      const text = r.path ? "critical path" : r.node ? r.node[1] : (this.open.has(r.key) ? "\u25be " : "\u25b8 ")
        + "nodes " + r.members[0][0] + "\u2013" + r.members[r.members.length - 1][0];
      g.save(); g.beginPath(); g.rect(0, r.top, LABEL - 6, r.height); g.clip();
      g.fillText(text, 2, r.top + r.height / 2); g.restore();
    }

    spans(node) {
      const flat = node[4], found = [];
      for (let i = 0; i < flat.length; i += 2) found.push([flat[i], flat[i + 1], i + 2 < flat.length ? flat[i + 3] : this.end]);
      return found;
    }

    // Draw a bar, with the first of these texts that fits into it.
    bar(g, phase, start, end, y, h, ...texts) {
      if (end < this.from || start > this.to) return;
      const left = Math.max(this.x(start), LABEL), right = Math.min(this.x(end), this.width);
      g.fillStyle = this.fills[phase]; g.fillRect(left, y, Math.max(right - left, .6), h);
      g.font = "11px system-ui, 'DejaVu Sans', sans-serif"; g.textBaseline = "middle"; g.textAlign = "center";
      const text = texts.find(one => right - left > g.measureText(one).width + 8);
      if (text) {
        const wide = g.measureText(text).width + 6, middle = (left + right) / 2;  // no pattern behind the text
        g.fillStyle = this.colour("--" + this.model.phases[phase].name); g.fillRect(middle - wide / 2, y + 1, wide, h - 2);
        g.fillStyle = this.colour("--text"); g.fillText(text, middle, y + h / 2);
      }
    }

    steps(g, r) {
      const y = r.top + 2, h = r.height - 8;
      for (const [phase, , start, end, what] of this.path) {
        const took = Muster.seconds(end - start);
        this.bar(g, phase, start, end, y, h, what + ", " + took, took, took.replace(/\.\d+ s/, " s"));
      }
      g.strokeStyle = this.colour("--path"); g.lineWidth = 2;
      for (const [, , start, end] of this.path) {
        g.strokeRect(this.x(start) + 1, y, Math.max(this.x(end) - this.x(start) - 2, 1), h);
      }
    }

    bars(g, r) {
      const y = r.top + 2, h = r.height - 4;
      for (const [phase, start, end] of this.spans(r.node)) this.bar(g, phase, start, end, y, h, this.model.phases[phase].title);
      g.strokeStyle = this.colour("--path"); g.lineWidth = 2;
      for (const [, rank, start, end] of this.path) {
        if (rank === r.node[0]) g.strokeRect(this.x(start) + 1, y, Math.max(this.x(end) - this.x(start) - 2, 1), h);
      }
    }

    // Draw the share of the group in each phase at every pixel: count differences first, then sum them.
    shares(g, r) {
      const left = LABEL, width = Math.max(1, Math.floor(this.width - LABEL - 6)), count = this.model.phases.length;
      const steps = Array.from({ length: count }, () => new Int32Array(width + 2));
      for (const node of r.members) {
        for (const [phase, start, end] of this.spans(node)) {
          if (end < this.from || start > this.to) continue;
          const a = Math.max(0, Math.round(this.x(start) - left)), b = Math.min(width, Math.round(this.x(end) - left));
          if (b > a) { steps[phase][a] += 1; steps[phase][b] -= 1; }
        }
      }
      const y = r.top + 2, h = r.height - 4, sums = new Int32Array(count);
      const paths = Array.from({ length: count }, () => new Path2D());
      for (let px = 0; px < width; px++) {
        let top = y, all = 0;
        for (let phase = 0; phase < count; phase++) { sums[phase] += steps[phase][px]; all += sums[phase]; }
        for (let phase = 0; phase < count && all; phase++) {
          if (!sums[phase]) continue;
          const part = sums[phase] / all * h;
          paths[phase].rect(left + px, top, 1, part); top += part;
        }
      }
      for (let phase = 0; phase < count; phase++) { g.fillStyle = this.fills[phase]; g.fill(paths[phase]); }
    }

    drawAxis() {
      const g = Muster.sized(this.axis, this.width, AXIS);
      g.font = "11px system-ui, 'DejaVu Sans', sans-serif"; g.fillStyle = this.colour("--faint");
      g.strokeStyle = this.colour("--line"); g.lineWidth = 1; g.textBaseline = "alphabetic";
      const range = this.to - this.from, raw = range / Math.max(3, (this.width - LABEL) / 110);
      const power = Math.pow(10, Math.floor(Math.log10(raw)));
      const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= raw);
      g.textAlign = "left"; g.fillText("seconds", 2, AXIS - 6);
      g.textAlign = "center";
      for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
        const x = this.x(t);
        g.beginPath(); g.moveTo(x, AXIS - 4); g.lineTo(x, AXIS); g.stroke();
        g.fillText(String(+(t / 1000).toPrecision(6)), Math.min(x, this.width - 18), AXIS - 6);
      }
      g.textAlign = "left";
      let free = 0;
      for (const [t, kind, , text] of this.attempt.marks) {
        const x = this.x(t);
        const quiet = kind === "driver_end" || kind === "service" && !text.endsWith(": failed");  // without a label
        if (x < LABEL || x > this.width || quiet || x < free) continue;
        g.fillStyle = this.colour(kind === "lost" ? "--bad" : "--text");
        const label = (kind === "lost" ? "\u2715 " : "\u25be ") + text;
        const wide = g.measureText(label).width, at = Math.min(x - 3, this.width - wide - 2);
        g.fillText(label, at, 13); free = at + wide + 8;
      }
    }

    drawMarks(g, top, height) {
      for (const [t, kind] of this.attempt.marks) {
        const x = Math.round(this.x(t)) + .5;
        if (x < LABEL || x > this.width) continue;
        g.strokeStyle = this.colour(kind === "lost" ? "--bad" : "--path"); g.lineWidth = 1;
        g.setLineDash(kind === "lost" ? [2, 3] : kind === "driver_end" ? [6, 4] : []);
        g.globalAlpha = .6; g.beginPath(); g.moveTo(x, top); g.lineTo(x, top + Math.min(height, this.height)); g.stroke();
        g.globalAlpha = 1; g.setLineDash([]);
      }
      if (this.drag) {
        const [a, b] = [Math.min(this.drag[0], this.drag[1]), Math.max(this.drag[0], this.drag[1])];
        g.fillStyle = this.colour("--accent"); g.globalAlpha = .2; g.fillRect(a, top, b - a, height); g.globalAlpha = 1;
      }
    }
  };
})();
