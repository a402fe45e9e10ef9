// The services of a run: ready instances, the state of each, and the load of sandboxes.
"use strict";
(function () {
  const el = Muster.el, FEW = 12;

  // The busy slots of a sandbox, as a bar and as figures.
  Muster.busy = load => el("span", { class: "busy" },
    el("meter", { min: 0, max: Math.max(1, load.slots), value: load.running, "aria-label": "busy slots" }),
    " " + load.running + " of " + load.slots);

  // Sort order: instances that are not ready first, then by restarts and load.
  const first = (a, b) => (a.state === "ready") - (b.state === "ready") || b.restarts - a.restarts
    || (b.load?.running ?? 0) - (a.load?.running ?? 0) || a.node_index - b.node_index;

  function instances(service, rows, openLog) {
    const right = title => ({ title, right: true }), loads = service.load !== null;
    const figures = load => load ? [Muster.busy(load), load.queued, load.rate.toFixed(1), load.executed, load.failed, load.sessions]
      : ["", "", "", "", "", ""];
    const log = one => openLog ? el("button", { "data-key": service.name + " " + one.node_index,
      "aria-label": "log of " + service.name + " on " + one.host, onclick: () => openLog(one.log) }, "log") : "";
    return Muster.table([right("index"), "node", "state", right("restarts"), "URL",
      ...(loads ? ["busy", right("queued"), right("per second"), right("executed"), right("failed"), right("sessions")] : []), ""],
    rows.map(one => [one.node_index ?? "", one.host, el("span", {}, one.state, one.reason ? el("span", { class: "faint" }, " " + one.reason) : null),
      one.restarts, el("code", {}, one.url), ...(loads ? figures(one.load) : []), log(one)]));
  }

  function one(service, openLog, open) {
    const rows = [...service.instances].sort(first), load = service.load;
    const rest = rows.length > FEW ? el("details", { open: open.has(service.name), ontoggle: event => {
      const list = event.target;
      open[list.open ? "add" : "delete"](service.name);
      if (list.open && list.childElementCount === 1) list.append(instances(service, rows.slice(FEW), openLog));  // only when opened: there may be thousands
    } }, el("summary", {}, (rows.length - FEW) + " more")) : null;
    return [el("h3", {}, service.name, " ", el("span", { class: "ready" }, service.ready + " of " + service.wanted + " ready"),
      el("span", { class: "faint" }, (service.restarts ? ", restarts: " + service.restarts : "")
        + (service.gate ? "" : "; the driver does not wait for it"))),
    load ? el("p", {}, Muster.busy(load), " busy, " + load.queued + " queued, " + load.rate.toFixed(1) + " executions per second, "
      + load.executed + " executed, " + load.failed + " failed, " + load.sessions + " sessions") : null,
    service.endpoint.map(line => el("p", {}, line)),
    rows.length ? instances(service, rows.slice(0, FEW), openLog) : null, rest];
  }

  // `openLog` is null on pages without a log viewer; `open` is the set of expanded lists.
  Muster.services = function (model, openLog = null, open = new Set()) {
    if (!model.services.length) return null;
    return el("section", { id: "services" }, el("h2", {}, "Services"), model.services.map(service => one(service, openLog, open)));
  };
})();
