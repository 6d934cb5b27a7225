/* Steps through the schedules of the page with a slider over the instants at which operations begin. Operations that
 * have not begun are faint, a line marks the instant, and a text names the devices' operations. The instant is ?t= in
 * the address; without it the whole step is shown. */

import "./wrong_fields.js";

const FAINT = 0.12;
const PLAY_MS = 450;
let playing = null;

const boxes = () => [...document.querySelectorAll("#result .chart-box")].filter((box) => box.data);
const slider = () => document.getElementById("player-at");

function marks() {
  const all = boxes().flatMap((box) => box.layout.meta?.marks ?? []);
  return [...new Set(all)].sort((a, b) => a - b);
}

function drawn(box, at) {
  const opacity = box.data.map((trace) => (trace.base ? trace.base.map((start) => (start < at || trace.name === "idle" ? 1 : FAINT)) : null));
  const bars = opacity.flatMap((values, i) => (values ? [i] : []));
  const line = { type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: getComputedStyle(box).color, width: 1.5 } };
  return window.Plotly.update(box, { "marker.opacity": bars.map((i) => opacity[i]) }, { shapes: [line] }, bars);
}

/* What every device does just before `at`, from the bars of the chart. */
function now(box, at) {
  const doing = new Map();
  for (const trace of box.data) {
    if (!trace.base || trace.name === "idle") continue;
    trace.base.forEach((start, i) => {
      if (start < at && at <= start + trace.x[i] + 1e-6) doing.set(Math.round(trace.y[i]), `${trace.name} ${trace.text[i]}`);
    });
  }
  const named = (label) => label.replace(/<br><span[^>]*>(.*)<\/span>$/, " ($1)");
  const rows = box.layout.yaxis.ticktext.map((label, row) => `${named(label)}: ${doing.get(row) ?? "idle"}`);
  return rows.join(" · ");
}

function say(text) {
  const output = document.getElementById("player-now");
  if (output) output.textContent = text;
}

function show() {
  const input = slider();
  if (!input) return;
  const all = marks();
  const last = all.length - 1;
  const index = Math.min(Number(input.value), last);
  const whole = index >= last;
  const at = all[index];
  input.setAttribute("aria-valuetext", `${at} units`);
  for (const box of boxes()) {
    if (whole) window.Plotly.update(box, { "marker.opacity": 1 }, { shapes: [] }, box.data.flatMap((trace, i) => (trace.base ? [i] : [])));
    else drawn(box, at);
  }
  const lines = boxes().map((box) => `${box.closest(".chart").querySelector("figcaption").textContent.split(":")[0]}: ${now(box, at)}`);
  say(whole ? "The whole step is shown." : `Until ${at} units. ${lines.slice(0, 2).join(". ")}.`);
  const url = new URL(location.href);
  if (whole) url.searchParams.delete("t");
  else url.searchParams.set("t", String(at));
  history.replaceState(history.state, "", url);
}

/* Charts are drawn when they come near the screen: sets the slider's range as soon as one is drawn. */
function ready() {
  const input = slider();
  const all = marks();
  if (!input || !all.length) return false;
  const asked = Number(new URLSearchParams(location.search).get("t") ?? Number.NaN);
  const found = all.findIndex((at) => at >= asked);
  input.max = String(all.length - 1);
  input.value = String(found < 0 ? all.length - 1 : found);
  if (found >= 0) show();
  return true;
}

/* While it plays, each instant is said too briefly to be read out; where it stops is. */
function readOut(on) {
  const output = document.getElementById("player-now");
  output?.setAttribute("aria-live", on ? "polite" : "off");
  if (on) say(output?.textContent);
}

function stop() {
  if (playing) readOut(true);
  clearInterval(playing);
  playing = null;
  const button = document.querySelector("[data-play]");
  if (!button) return;
  button.textContent = "Play";
  button.setAttribute("aria-pressed", "false");
}

/* After the end it starts again: first the whole step is shown, and the next instant is the first one. */
function move(by) {
  const input = slider();
  const at = Number(input.value);
  input.value = String(by > 0 && at >= Number(input.max) ? 0 : at + by);
  show();
}

/* Scrolls so that the chart is visible while the controls above it stay in place. */
function together() {
  const [first] = boxes();
  if (first && first.getBoundingClientRect().bottom > innerHeight) document.querySelector(".played").scrollIntoView();
}

function play(button) {
  if (playing) return stop();
  together();
  const input = slider();
  if (Number(input.value) >= Number(input.max)) input.value = "0";
  button.textContent = "Pause";
  button.setAttribute("aria-pressed", "true");
  readOut(false);
  playing = setInterval(() => {
    move(1);
    if (Number(slider().value) >= Number(slider().max)) stop();
  }, PLAY_MS);
}

document.addEventListener("input", (event) => {
  if (event.target.id === "player-at") show();
});
document.addEventListener("keydown", (event) => {
  const on = event.key === "ArrowRight" || event.key === "ArrowUp";
  if (!on || event.target.id !== "player-at" || Number(event.target.value) < Number(event.target.max)) return;
  event.preventDefault(); // at its end the slider itself would not move
  move(1);
});
document.addEventListener("click", (event) => {
  const mover = event.target.closest("[data-move]");
  if (mover) {
    together();
    move(Number(mover.dataset.move));
  }
  const button = event.target.closest("[data-play]");
  if (button) play(button);
});
document.body.addEventListener("htmx:beforeSwap", stop);
document.addEventListener("chartdrawn", ready);
ready();
