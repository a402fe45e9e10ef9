// The sections of a run's page that the report and `muster ui` share.
"use strict";
(function () {
  const el = Muster.el, seconds = Muster.seconds;

  // The current wait of a live run, and a warning if its status is not updated.
  Muster.waitsFor = function (model, now) {
    if (!model.waits) return null;
    const warning = model.silent ? " No update for " + seconds(model.silent * 1000) + ": its leader may be gone." : "";
    return model.waits[0] + ", for " + seconds(now - model.waits[1]) + "." + warning;
  };

  Muster.head = function (model, ...more) {
    const attempt = model.attempts[model.attempts.length - 1], cycles = attempt.cycles.length;
    const first = attempt.cycles.find(cycle => cycle.driver[0] !== null);
    const fact = (name, value) => value === null || value === "" ? null : el("li", {}, name + " ", el("b", {}, value));
    return el("header", { class: "card" },
      el("div", { class: "tools" }, el("h1", {}, model.run), el("span", { class: "state " + model.state }, model.state), ...more),
      model.reason ? el("p", { class: "reason" }, model.reason
        + (model.exit_code === null ? "" : " (exit code " + model.exit_code + ")")) : null,
      model.waits ? el("p", { class: "waits" }, Muster.waitsFor(model, model.now)) : null,
      el("ul", { class: "facts" },
        fact("nodes", attempt.nodes.length), fact(model.live ? "so far" : "took", seconds(model.wall)),
        fact("job start to driver", first ? seconds(first.driver[0] - attempt.began) : ""),
        fact("cycles", cycles > 1 ? cycles : ""), fact("attempts", model.attempts.length > 1 ? model.attempts.length : ""),
        fact("requested", Muster.when(model.asked)),
        fact(model.backend === "slurm" ? "Slurm job" : "on", model.job_id || model.backend)),
      el("p", { class: "mono faint" }, model.command.join(" ")));
  };

  Muster.pathTable = function (model, cycle) {
    const total = cycle.path.reduce((sum, step) => sum + step[3] - step[2], 0) || 1;
    const rows = cycle.path.filter(step => step[3] - step[2] >= 1).map(([phase, rank, start, end, what]) => [
      seconds(end - start), Math.round(100 * (end - start) / total) + " %", model.phases[phase].title,
      what + (rank === null ? "" : " (index " + rank + ")")]);
    rows.push([el("b", {}, seconds(total)), "", "", cycle.driver[0] === null ? "without a driver" : "to the driver"]);
    return Muster.table([{ title: "seconds", right: true }, { title: "", right: true }, "phase", "step"], rows);
  };

  Muster.paths = function (model) {
    const parts = [];
    for (const attempt of model.attempts) for (const cycle of attempt.cycles) {
      const name = (model.attempts.length > 1 ? "attempt " + attempt.number + ", " : "") + "cycle " + cycle.number;
      const several = attempt.cycles.length > 1 || model.attempts.length > 1;
      parts.push(several ? el("h3", {}, name) : null, Muster.pathTable(model, cycle),
        cycle.reason && several ? el("p", { class: "faint" }, "ended: " + cycle.reason) : null);
    }
    return el("section", {}, el("h2", {}, "Critical path to the driver"), parts);
  };

  Muster.slow = function (model) {
    const attempt = model.attempts[model.attempts.length - 1], slow = attempt.slow;
    const parts = slow.nodes.some(node => node[4] > 0) ? 3 : 2;
    if (slow.nodes.length < 2) return null;
    return el("section", {}, el("h2", {}, "Slowest nodes"),
      el("p", { class: "faint" }, "Start-up time per node, without waiting for others; median: " + seconds(slow.usual * 1000)
        + (slow.cycle ? " (cycle " + slow.cycle + ")" : "")),
      Muster.table([{ title: "index", right: true }, "node", ...["launching", "Ray", "services"].slice(0, parts).map(title => ({ title, right: true }))],
        slow.nodes.map(([rank, host, ...own]) => [rank, host, ...own.slice(0, parts).map(part => seconds(part * 1000))])));
  };

  Muster.failures = function (model) {
    if (!model.failures.length) return null;
    return el("section", {}, el("h2", {}, "Failures"), model.failures.map(failure => el("div", {},
      el("p", {}, el("b", {}, failure.host || "the step"), failure.node_index === null ? "" : " (index " + failure.node_index + ")",
        " in phase " + failure.phase + (failure.cycle ? ", cycle " + failure.cycle : "")
        + (failure.time === null ? "" : ", after " + seconds(failure.time)) + ": " + failure.reason),
      failure.tail.length ? el("pre", {}, failure.tail.join("\n")) : null)));
  };

  Muster.nodeSeconds = function (model) {
    const total = model.node_seconds.reduce((sum, [, part]) => sum + part, 0);
    if (!total) return null;
    const fills = Muster.fills(model.phases), sorted = [...model.node_seconds].sort((a, b) => b[1] - a[1]);
    return el("section", {}, el("h2", {}, "Node-seconds by phase"),
      Muster.table(["", "phase", { title: "node-seconds", right: true }, { title: "", right: true }],
        sorted.map(([phase, part]) => [Muster.swatch(fills[phase]), model.phases[phase].title, part.toFixed(1),
          (100 * part / total).toFixed(1) + " %"])));
  };

  Muster.resources = function (model) {
    const show = value => value === null || value === undefined ? "\u2013" : value;
    return el("section", {}, el("h2", {}, "Requested resources"),
      Muster.table(["group", { title: "nodes", right: true }, { title: "CPUs", right: true }, { title: "GPUs", right: true },
        { title: "memory", right: true }, "partition"],
      model.resources.map(r => [r.group || "all", r.nodes, show(r.cpus), show(r.gpus), show(r.memory), show(r.partition)])),
      el("p", { class: "faint" }, "Per node, as requested by the job."));
  };

  Muster.spec = function (model) {
    const text = value => typeof value === "string" ? value : JSON.stringify(value);
    return el("section", {}, el("details", {}, el("summary", {}, "Resolved job"),
      Muster.table(["field", "value"], Object.entries(model.spec).map(([name, value]) => [name, el("code", {}, text(value))])),
      el("p", { class: "faint mono" }, model.directory)));
  };

  Muster.timelines = function (model) {
    const timelines = model.attempts.map(attempt => new Muster.Timeline(model, attempt));
    const element = el("section", {}, el("h2", {}, "Timeline"), model.attempts.map((attempt, at) => [
      model.attempts.length > 1 ? el("h3", {}, "attempt " + attempt.number) : null, timelines[at].element]));
    return { timelines, element };
  };

  // Two columns: the critical path, and figures about the nodes.
  Muster.columns = function (model) {
    return el("div", { class: "two" }, el("div", {}, Muster.paths(model)),
      el("div", {}, Muster.slow(model), Muster.nodeSeconds(model), Muster.resources(model)));
  };

  Muster.report = function (model, place) {
    const torn = model.torn ? el("p", { class: "faint" }, model.torn + " lines of the event files could not be read.") : null;
    const parts = [Muster.head(model), Muster.failures(model), Muster.timelines(model).element, Muster.services(model), Muster.columns(model),
      Muster.spec(model), torn];
    place.replaceChildren(...parts.filter(Boolean));
  };
})();
