/* Live page of a run: fetches and updates the parts that the stream reports as new. The page is not reloaded or
 * scrolled, and the focus stays.
 *
 *   state, summary   the head: badge, verdict, actions        points    the tiles, and new points of the metrics
 *   spans, memory    the timeline, the findings              log       the bytes after the last one shown
 *   spans            the choice of the traced step
 *   text             the text so far of a run that generates
 *   "*"              after a lost connection: all of these, each from its current state on
 */

import { update, view, watch } from "./charts.js";
import { justLoaded } from "./from_cache.js";
import { elementOf, morph } from "./morph.js";
import { check, get, isUrgent, Paced } from "./refetch.js";
import { Log } from "./run_log.js";
import { subscribe } from "./stream.js";

const root = document.getElementById("run");
const { run, url, tab, step, generates } = root.dataset;
let settled = "settled" in root.dataset; // it ended long before the page was rendered, so nothing has changed since
const TAB_TOPICS = {
  timeline: ["spans"],
  memory: ["memory"],
  ranks: ["progress", "info", "state"],
  events: ["events", "state"],
};
const FILLED_ONCE = { accounts: ["spans", "state"], operators: ["spans", "state"] }; // fetched as long as they are empty
const SLOWEST_MS = 1000; // least interval between fetches of a part that takes the server or the browser long
const QUICKEST_MS = 250; // and of the others
const MOST_ADDED = 4000; // points added to a curve before it is fetched again, thinned to the width of a chart
const parts = new Map(); // name -> Paced

function part(name) {
  if (!parts.has(name)) parts.set(name, new Paced());
  return parts.get(name);
}

const soon = (name, work, gap, urgent) => part(name).soon(work, gap, urgent);

/* Fetches an address of the run for a part, whose next fetches depend on what this one costs. */
async function getPart(name, path, type) {
  const answer = await get(url + path, { headers: { Accept: type } });
  if (answer.status === 404 && path === "part/head") location.reload(); // deleted: the page says so
  check(answer);
  part(name).paid(answer);
  return answer;
}

const getJson = async (name, path) => (await getPart(name, path, "application/json")).json();

/* Updates an element from its newly rendered HTML. */
async function swap(id, path) {
  const old = document.getElementById(id);
  const fresh = await elementOf(await getPart(id, path, "text/html"), id);
  if (!old || !fresh) return;
  const stateChanged = id === "head" && old.dataset.state !== fresh.dataset.state;
  morph(old, fresh);
  watch(old);
  if (stateChanged) old.querySelector(".badge")?.classList.add("pulse");
}

/* Metrics ------------------------------------------------------------------------------------------------------- */

const charts = new Map();

/* The last step of a line of a chart; -1 if it has none. */
const lastStep = ({ figure }, line = 0) => figure.layout.meta?.axes?.step?.[line]?.at(-1) ?? -1;

/* Those of all lines of a chart by their keys: of one, "loss", or of each of its `lines`, which are numbers of stages,
 * "staleness:1". Traces behind them are of earlier attempts. */
function lastSteps([key, chart]) {
  const { lines } = chart.figure.layout.meta ?? {};
  return (lines ?? [0]).map((stage, line) => [lines ? `${key}:${stage}` : key, lastStep(chart, line)]);
}

function readCharts() {
  for (const element of document.querySelectorAll("#tab .chart[data-chart]")) {
    const script = element.querySelector("script[type='application/json']");
    const figure = script ? JSON.parse(script.textContent) : null;
    if (figure) charts.set(element.dataset.chart, { figure });
  }
}

async function fetchAll() {
  const { charts: fresh } = await getJson("points", "data/metrics.json");
  for (const [key, chart] of Object.entries(fresh)) charts.set(key, chart);
  await update(fresh);
}

async function fetchPoints() {
  // Each line asks for what comes after its own end: some have a point only in traced steps, and the server reads one
  // series after another while points arrive.
  const ends = [...charts].flatMap(lastSteps).filter(([, step]) => step >= 0);
  if (!ends.length || [...charts.values()].some(({ added }) => added > MOST_ADDED)) return fetchAll();
  const { series, begins } = await getJson("points", `data/points.json?${new URLSearchParams(ends)}`);
  // From its first step on, a later attempt's points take the place of those that are drawn.
  if ([...charts].some(([key, { figure }]) => figure.layout.meta.begins !== begins[key])) return fetchAll();
  if (Object.values(series).some(({ thinned }) => thinned)) return fetchAll();
  const changed = {};
  for (const [name, points] of Object.entries(series)) {
    const [key, stage] = name.split(":");
    const chart = charts.get(key);
    const line = stage === undefined ? 0 : (chart?.figure.layout.meta.lines?.indexOf(Number(stage)) ?? -1);
    if (!chart?.figure.data.length || line < 0) return fetchAll();
    append(chart, line, points);
    changed[key] = chart;
  }
  return update(changed);
}

function append(chart, line, { step: steps, time, value, ...around }) {
  const { axes, lines = [0], t0, per_step: perStep, least } = chart.figure.layout.meta;
  const last = lastStep(chart, line);
  chart.added = (chart.added ?? 0) + steps.length;
  const seen = axes.samples[line].at(-1); // null where it is not known how many came before this run
  chart.figure.data[line].y.push(...value);
  axes.step[line].push(...steps);
  axes.samples[line].push(...steps.map((at) => (seen === null ? null : seen + (at - last) * perStep)));
  axes.seconds[line].push(...time.map((at) => at - t0));
  chart.figure.data[line].x = axes.step[line];
  Object.assign(chart, around);
  // What is known of the points that the server did not read again: how many are drawn, and the least of them.
  const drawn = lines.reduce((sum, _, own) => sum + axes.step[own].length, 0);
  chart.source = chart.source.replace(/[\d\u00a0]+(?= of [\d\u00a0]+ points)/, grouped(drawn));
  chart.rows.forEach((row, i) => row.splice(-1, 1, (least[i] = lesser(least[i], row.at(-1)))));
}

/* A count with its thousands separated, as count_text of the server. */
const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, "\u00a0");

/* Of two numbers as texts the lesser one; "not finite" only if both are. */
const lesser = (known, fresh) => (Number(fresh) < Number(known) || Number.isNaN(Number(known)) ? fresh : known);

/* Log ----------------------------------------------------------------------------------------------------------- */

const logElement = document.getElementById("log");
const getLog = (query) => getJson("log", `data/log.json?${query}`);
const log = logElement && new Log(logElement, getLog, () => readLog(true));

function readLog(urgent) {
  soon("log", () => log.fetchNew(), QUICKEST_MS, urgent);
}

/* Life ---------------------------------------------------------------------------------------------------------- */

function news(what) {
  if (settled && what.includes("*")) {
    settled = false;
    if (justLoaded()) what = ["state"]; // for a retry, and for findings that were not ready
  }
  const any = (...topics) => what.includes("*") || topics.some((topic) => what.includes(topic));
  const urgent = isUrgent(what);
  const fetchPart = (name, gap) => soon(name, () => swap(name, `part/${name}`), gap, urgent);
  if (urgent) fetchPart("head", 0);
  else if (any("points", "series", "progress", "text")) fetchPart("head", SLOWEST_MS);
  showTab(any, urgent);
  if (generates) {
    if (any("text", "summary", "state")) fetchPart("text", QUICKEST_MS);
    return;
  }
  if (any("points", "series", "memory", "summary")) fetchPart("tiles", QUICKEST_MS);
  if (any("spans", "memory", "summary", "state")) fetchPart("findings", SLOWEST_MS);
  if (any("spans", "state")) soon("steps", swapSteps, SLOWEST_MS, urgent);
  const drawn = document.querySelector("[data-chart='gantt'] .chart-box .empty") === null;
  if (step === undefined && (any("spans", "memory") || (!drawn && any("state", "points")))) {
    soon("gantt", reloadGantt, drawn ? QUICKEST_MS : SLOWEST_MS, urgent);
  }
}

function showTab(any, urgent) {
  if (log && any("log", "state")) readLog(urgent);
  if (tab === "metrics" && any("points", "series")) soon("points", fetchPoints, SLOWEST_MS, urgent);
  // The other tabs (metrics, logs) are never replaced: their charts and text grow in place.
  const topics = TAB_TOPICS[tab] ?? (document.querySelector("#tab > .empty") ? FILLED_ONCE[tab] : undefined);
  if (topics && any(...topics)) soon("tab", () => swap("tab", `part/tab${location.search}`), SLOWEST_MS, urgent);
}

/* The choice of the traced step: not while it is in use, as its list may be open; then once it is no longer. */
async function swapSteps() {
  const asked = new URLSearchParams(location.search);
  if (step === undefined) asked.delete("step"); // What if writes there which one it replays
  if (document.activeElement?.id !== "step") await swap("steps", `part/steps?${asked}`);
}

document.addEventListener("focusout", ({ target }) => {
  if (target.id === "step") soon("steps", swapSteps, QUICKEST_MS);
});

/* Fetches the shown part of the timeline again; if the zoom changes meanwhile, the part that is then shown. */
async function reloadGantt() {
  const shown = view("gantt");
  const chart = await getJson("gantt", `data/gantt.json?${shown}`);
  if (shown !== view("gantt")) return reloadGantt();
  await update({ gantt: chart });
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  const dialog = opener && document.getElementById(opener.dataset.opens);
  if (dialog) {
    event.preventDefault();
    dialog.showModal();
  }
});

if (tab === "metrics") readCharts();
subscribe(`run:${run}`, news);
