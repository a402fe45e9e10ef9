// The log viewer: it fetches ranges of a log of any size; the server searches it.
"use strict";
(function () {
  const el = Muster.el, MAX_SHOWN_BYTES = 1 << 20, PART_BYTES = 256 * 1024;

  Muster.Logs = class {
    constructor(run) {
      this.base = "/api/runs/" + encodeURIComponent(run) + "/";
      this.choice = el("select", { "aria-label": "Log", onchange: () => this.choose(this.choice.value) });
      this.follow = el("input", { type: "checkbox", id: "follow", checked: true });
      this.words = el("input", { type: "search", placeholder: "find lines", "aria-label": "Find lines in the log",
        onchange: () => this.search() });
      this.download = el("a", { download: "" }, "download");
      this.where = el("span", { class: "faint", role: "status" });
      this.text = el("div", { class: "log", tabindex: "0", role: "log", "aria-label": "Contents of the log" });
      const button = (title, action) => el("button", { onclick: action }, title);
      this.element = el("section", { id: "logs" }, el("h2", {}, "Logs"), el("div", { class: "tools" }, this.choice,
        button("start", () => this.jump(0)), button("earlier", () => this.earlier()), button("later", () => this.later()),
        button("end", () => this.jump(-PART_BYTES)), el("label", { for: "follow" }, this.follow, " follow"), this.words,
        this.download, this.where), this.text);
      this.name = ""; this.start = this.end = this.size = 0; this.found = this.chosen = false; this.run = 0;
      setInterval(() => { if (this.follow.checked && !document.hidden) this.later().catch(() => {}); }, 1000);
    }

    async ask(path, query) {
      const answer = await fetch(this.base + path + "?" + new URLSearchParams(query));
      if (!answer.ok) throw new Error(await answer.text());
      return answer.json();
    }

    // Update the list of logs, which grows during a run, and keep the selection.
    async list() {
      const logs = await this.ask("logs", {});
      const names = logs.map(log => log.name).join("\n");
      if (names !== this.names) {
        this.names = names;
        this.choice.replaceChildren(...logs.map(log => el("option", { value: log.name }, log.name)));
        if (this.name) this.choice.value = this.name;
      }
      // The driver's log is the first one as soon as it exists; until then others are shown.
      const undisturbed = !this.chosen && !this.found && this.follow.checked;
      if (logs.length && logs[0].name !== this.name && (!this.name || undisturbed)) await this.open(logs[0].name);
    }

    // Open a log that the user has chosen, and stay with it.
    async choose(name) {
      this.chosen = true;
      await this.open(name);
    }

    async open(name) {
      this.name = name; this.choice.value = name; this.words.value = ""; this.found = false;
      this.download.href = this.base + "download?" + new URLSearchParams({ name });
      await this.jump(-PART_BYTES);
    }

    async jump(from) {
      const run = ++this.run, part = await this.ask("log", { name: this.name, from, most: PART_BYTES });
      if (run !== this.run) return;
      this.found = false;
      this.text.replaceChildren(Muster.clean(part.text));
      this.start = part.start; this.end = part.end; this.size = part.size;
      this.text.scrollTop = from < 0 ? this.text.scrollHeight : 0;
      if (from >= 0) this.follow.checked = false;
      this.showRange();
    }

    async later() {
      if (!this.name || this.found) return;
      const run = this.run, part = await this.ask("log", { name: this.name, on: this.end });
      if (run !== this.run || !part.text) { this.size = part.size; this.showRange(); return; }
      const below = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 40;
      this.text.append(Muster.clean(part.text));
      this.end = part.end; this.size = part.size;
      while (this.text.childNodes.length > 1 && this.end - this.start > MAX_SHOWN_BYTES) {
        this.start += new TextEncoder().encode(this.text.firstChild.data).length; this.text.firstChild.remove();
      }
      if (this.follow.checked && below) this.text.scrollTop = this.text.scrollHeight;
      this.showRange();
    }

    async earlier() {
      if (!this.start || this.found) return;
      const from = Math.max(0, this.start - PART_BYTES), run = this.run;
      const part = await this.ask("log", { name: this.name, from, most: this.start - from });
      if (run !== this.run) return;
      const height = this.text.scrollHeight;
      this.text.prepend(Muster.clean(part.text));
      this.start = part.start; this.follow.checked = false;
      this.text.scrollTop = this.text.scrollHeight - height;
      this.showRange();
    }

    async search() {
      const words = this.words.value, run = ++this.run;
      if (!words) { await this.jump(-PART_BYTES); return; }
      this.found = true; this.text.replaceChildren();
      let from = 0, count = 0;
      while (from !== null && count < 1000 && run === this.run) {
        const found = await this.ask("find", { name: this.name, words, from });
        if (run !== this.run) return;
        for (const [at, line] of found.lines) this.text.append(this.line(at, Muster.clean(line), words));
        count += found.lines.length; from = found.next;
        const share = from === null ? 100 : Math.floor(100 * from / Math.max(1, found.size));
        this.where.textContent = count + " lines found in " + share + " % of the log" + (count >= 1000 ? "; only the first are shown" : "");
      }
    }

    // A search result; a click shows it in its context.
    line(at, text, words) {
      const hit = text.toLowerCase().indexOf(words.toLowerCase());
      const shown = hit < 0 ? [text] : [text.slice(0, hit), el("mark", {}, text.slice(hit, hit + words.length)), text.slice(hit + words.length)];
      return el("button", { class: "found", title: "byte " + at + ": show in context", onclick: () => this.jump(at).then(() => this.text.focus()) }, shown);
    }

    showRange() {
      this.where.textContent = this.size === 0 ? "empty" : "bytes " + this.start.toLocaleString("en") + " to "
        + this.end.toLocaleString("en") + " of " + this.size.toLocaleString("en");
    }
  };
})();
