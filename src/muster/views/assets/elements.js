// Building blocks of both pages: elements with text (never HTML), durations as text, patterns for phases.
"use strict";
const Muster = {};

Muster.el = function (tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") { if (value) element.setAttribute(name, ""); }
    else if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : String(child));
  }
  return element;
};

Muster.seconds = function (ms) {
  const s = ms / 1000;
  if (s < 10) return s.toFixed(2) + " s";
  if (s < 60) return s.toFixed(1) + " s";
  const two = n => String(Math.floor(n)).padStart(2, "0");
  if (s < 3600) return Math.floor(s / 60) + " min " + two(s % 60) + " s";
  return Math.floor(s / 3600) + " h " + two(s % 3600 / 60) + " min";
};

// Return a time as local time with its zone.
Muster.when = function (time) {
  return new Date(time * 1000).toLocaleString(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit",
    minute: "2-digit", second: "2-digit", timeZoneName: "short" });
};

// Make foreign text safe: remove terminal colours, replace other control characters.
Muster.clean = function (text) {
  return text.replace(/\x1b\[[0-9;:]*m/g, "").replace(/\r\n/g, "\n")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");
};

Muster.table = function (heads, rows) {
  const el = Muster.el;
  const head = heads.map(h => el("th", { class: h.right ? "right" : null, scope: "col", "aria-sort": h.sort }, h.title ?? h));
  const cells = row => row.map((cell, at) => el("td", { class: heads[at].right ? "right" : heads[at].kind }, cell));
  return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows.map(row => el("tr", {}, cells(row)))));
};

// -- phases: a colour from the style sheet, and a pattern that distinguishes them without colour ------------------

const HATCHES = {
  launching: g => { g.moveTo(0, 8); g.lineTo(8, 0); g.moveTo(-2, 2); g.lineTo(2, -2); g.moveTo(6, 10); g.lineTo(10, 6); },
  arrived: g => { g.moveTo(1, 2.5); g.lineTo(3, 2.5); g.moveTo(5, 6.5); g.lineTo(7, 6.5); },
  starting: g => { g.moveTo(0, 0); g.lineTo(8, 8); g.moveTo(6, -2); g.lineTo(10, 2); g.moveTo(-2, 6); g.lineTo(2, 10); },
  spare: g => { g.moveTo(0, 2); g.lineTo(8, 2); g.moveTo(0, 6); g.lineTo(8, 6); },
  finishing: g => { g.moveTo(2, 0); g.lineTo(2, 8); g.moveTo(6, 0); g.lineTo(6, 8); },
  lost: g => { g.moveTo(0, 0); g.lineTo(8, 8); g.moveTo(8, 0); g.lineTo(0, 8); },
  services: g => { g.moveTo(4, 0); g.lineTo(8, 4); g.lineTo(4, 8); g.lineTo(0, 4); g.closePath(); },
  joined: g => { g.moveTo(4, 2); g.lineTo(4, 6); g.moveTo(2, 4); g.lineTo(6, 4); },
  pending: g => { g.moveTo(0, 4.5); g.lineTo(3, 4.5); },
};

// Return the fill pattern of each phase; call it again when the colours change (light, dark).
Muster.fills = function (phases) {
  const style = getComputedStyle(document.documentElement), dense = window.devicePixelRatio || 1;
  return phases.map(phase => {
    const tile = document.createElement("canvas"), g = tile.getContext("2d");
    tile.width = tile.height = 8 * dense;
    g.scale(dense, dense);
    g.fillStyle = style.getPropertyValue("--" + phase.name).trim() || "#999";
    g.fillRect(0, 0, 8, 8);
    if (HATCHES[phase.name]) {
      g.strokeStyle = style.getPropertyValue("--ink"); g.globalAlpha = .7; g.lineWidth = 1;
      g.beginPath(); HATCHES[phase.name](g); g.stroke();
    }
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / dense));
    return pattern;
  });
};

// Resize a canvas for the screen's pixel density and return its context, in CSS pixels.
Muster.sized = function (canvas, width, height) {
  const dense = window.devicePixelRatio || 1, w = Math.round(width * dense), h = Math.round(height * dense);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.height = height + "px";
  const g = canvas.getContext("2d");
  g.setTransform(dense, 0, 0, dense, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
};

Muster.swatch = function (fill) {
  const canvas = Muster.el("canvas", { "aria-hidden": "true" });
  const g = Muster.sized(canvas, 22, 12);
  g.fillStyle = fill; g.fillRect(0, 0, 22, 12);
  return canvas;
};

Muster.legend = function (phases, used) {
  const fills = Muster.fills(phases);
  return Muster.el("ul", { class: "legend" }, phases.map((phase, at) => used.has(at)
    ? Muster.el("li", { title: phase.meaning }, Muster.swatch(fills[at]), phase.title) : null));
};
