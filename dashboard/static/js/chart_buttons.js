/* Buttons and keys that zoom a figure with meta.zooms, for all who do not drag over it. They change its axis as dragging
 * does; the listeners in chart_zoom.js do the rest. A figure with meta.above has a button for what a double-click does. */

import { part } from "./chart_zoom.js";

const LEAST = 0.001; // of the axis' unit, ms: least width of what is shown
const REPEAT_MS = 150; // least interval between zooms while a key is held, as each may be fetched

const scaled = (low, high, by) => [(low + high - by * (high - low)) / 2, (low + high + by * (high - low)) / 2];
const shifted = (low, high, by) => [low + by * (high - low), high + by * (high - low)];

const MOVES = [
  { label: "Zoom in", sign: "+", keys: ["w", "+", "="], to: ([low, high]) => scaled(low, high, 0.5) },
  { label: "Zoom out", sign: "−", keys: ["s", "-"], to: ([low, high]) => scaled(low, high, 2) },
  { label: "Earlier", sign: "←", keys: ["a", "ArrowLeft"], to: ([low, high]) => shifted(low, high, -0.5) },
  { label: "Later", sign: "→", keys: ["d", "ArrowRight"], to: ([low, high]) => shifted(low, high, 0.5) },
  { label: "Whole step", sign: "Whole step", keys: ["0"], to: (_, full) => full },
];
const [ALL, FIRST] = ["All values", "First view"]; // ALL as in dashboard/charts/chart.py
const HINT = "Drag to zoom in, double-click for the whole step. Keys: W, S, A, D, 0.";

const shown = ({ box }) => box.layout.xaxis.range.map(Number);
const whole = ({ figure }) => figure.layout.xaxis.range;

/* The range inside the full one, as wide as before where it can be. */
function within([low, high], [first, last]) {
  if (high - low >= last - first) return [first, last];
  const wide = Math.max(high - low, LEAST);
  const begin = Math.min(Math.max((low + high - wide) / 2, first), last - wide);
  return [begin, begin + wide];
}

/* The range that a move leads to; null if it would change nothing. */
function target(entry, move) {
  const now = shown(entry);
  const next = within(move.to(now, whole(entry)), whole(entry));
  const same = 1e-6 * (now[1] - now[0]); // rounding only
  return next.every((value, i) => Math.abs(value - now[i]) <= same) ? null : next;
}

function go(entry, move) {
  const next = target(entry, move);
  if (next) window.Plotly.relayout(entry.box, { "xaxis.range": next });
}

const plain = (text) => Object.assign(document.createElement("button"), { type: "button", className: "button small", textContent: text });

function button(entry, move) {
  const made = plain(move.sign);
  made.setAttribute("aria-label", move.label);
  made.setAttribute("aria-keyshortcuts", move.keys.join(" ").replace("+", "Plus"));
  made.title = `${move.label} (${move.keys[0].toUpperCase()})`;
  made.addEventListener("click", () => go(entry, move));
  return made;
}

/* What cannot be done now looks disabled, but keeps the focus and with it the keys. */
function refresh(entry, buttons) {
  MOVES.forEach((move, i) => buttons[i].setAttribute("aria-disabled", String(!target(entry, move))));
  const [first, last] = [buttons[0], buttons.at(-1)];
  const zoomed = part(entry) !== "";
  if (!zoomed && document.activeElement === last) first.focus();
  last.hidden = !zoomed;
}

function listener(entry) {
  let before = 0;
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = MOVES.find(({ keys }) => keys.includes(event.key.length === 1 ? event.key.toLowerCase() : event.key));
    if (!move) return;
    event.preventDefault();
    if (event.repeat && event.timeStamp - before < REPEAT_MS) return;
    before = event.timeStamp;
    go(entry, move);
  };
}

const offered = (element) => element.querySelector(".zoom") !== null;

function group(name, ...parts) {
  const row = Object.assign(document.createElement("div"), { className: "zoom" });
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", name);
  row.append(...parts);
  return row;
}

/* Puts a button below a chart of which some values lie above the first view: it shows them all, and leads back. */
export function offerAll(entry) {
  const { box, element } = entry;
  if (!entry.first || offered(element)) return;
  const made = plain(ALL);
  const row = group("Range", made);
  const all = () => box.layout.yaxis.autorange === true;
  const follow = () => {
    made.textContent = all() ? FIRST : ALL;
    row.hidden = !entry.first;
  };
  made.addEventListener("click", () => {
    window.Plotly.relayout(box, all() ? { "yaxis.range": [...entry.first] } : { "yaxis.autorange": true });
  });
  box.after(row);
  for (const name of ["plotly_afterplot", "plotly_relayout"]) box.on(name, follow);
  follow();
}

/* Puts the buttons below the chart; keys work while they or the chart have the focus. */
export function offerZoom(entry) {
  const { box, element, figure } = entry;
  if (!figure.layout.meta?.zooms || offered(element)) return;
  const buttons = MOVES.map((move) => button(entry, move));
  const hint = Object.assign(document.createElement("span"), { className: "sub small", textContent: HINT });
  const row = group("Zoom", ...buttons, hint);
  box.after(row);
  row.onkeydown = box.onkeydown = listener(entry);
  box.tabIndex = -1; // a click gives it the focus; with Tab, the buttons get it
  box.onpointerdown = () => box.focus({ preventScroll: true });
  for (const name of ["plotly_afterplot", "plotly_relayout"]) box.on(name, () => refresh(entry, buttons));
  refresh(entry, buttons);
}

/* For a box whose drawing is replaced by a text. */
export function withdrawZoom(box) {
  box.parentElement.querySelector(":scope > .zoom")?.remove();
  box.onkeydown = box.onpointerdown = null;
  box.removeAttribute("tabindex");
}
