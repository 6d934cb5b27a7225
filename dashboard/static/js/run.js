/* Live page of a run: fetches and updates the parts that the stream reports as new. The page is not reloaded or
 * scrolled, and the focus stays.
 *
 *   state, summary   the head: badge, verdict, actions        points    the tiles, and new points of the metrics
 *   spans, memory    the timeline, the findings              log       the bytes after the last one shown
 *   text             the text so far of a run that generates
 *   "*"              after a lost connection: all of these, each from its current state on
 */

import { update, view, watch } from "./charts.js";
import { morph } from "./morph.js";
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
const SLOWEST_MS = 1000; // least interval between fetches of a part that the server renders
const RETRY_MS = 3000;
const waiting = new Map(); // name -> timer
const busy = new Set();

/* Runs one fetch of a kind at a time; news during a fetch causes one more. */
function soon(name, work, gap = 0) {
  if (waiting.has(name)) return;
  waiting.set(
    name,
    setTimeout(async () => {
      if (busy.has(name)) {
        waiting.delete(name);
        soon(name, work, Math.max(gap, 100));
        return;
      }
      waiting.delete(name);
      busy.add(name);
      let retry = false;
      try {
        await work();
      } catch (error) {
        console.warn(name, error);
        retry = true; // the stream may still be open although a fetch failed, so no news may follow
      } finally {
        busy.delete(name);
      }
      if (retry) soon(name, work, RETRY_MS);
    }, gap),
  );
}

async function get(path, type) {
  const answer = await fetch(url + path, { headers: { Accept: type } });
  if (answer.status === 404 && path === "part/head") location.reload(); // deleted: the page says so
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}

/* Updates an element from its newly rendered HTML. */
async function swap(id, path) {
  const old = document.getElementById(id);
  const text = await (await get(path, "text/html")).text();
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById(id);
  if (!old || !fresh) return;
  const stateChanged = id === "head" && old.dataset.state !== fresh.dataset.state;
  morph(old, fresh);
  watch(old);
  if (stateChanged) old.querySelector(".badge")?.classList.add("pulse");
}

/* Metrics ------------------------------------------------------------------------------------------------------- */

const charts = new Map();

/* The last step of a chart's line; -1 if it has none. */
const lastStep = ({ figure }) => figure.layout.meta?.axes?.step?.[0]?.at(-1) ?? -1;

function readCharts() {
  for (const element of document.querySelectorAll("#tab .chart[data-chart]")) {
    const script = element.querySelector("script[type='application/json']");
    const figure = script ? JSON.parse(script.textContent) : null;
    if (figure) charts.set(element.dataset.chart, { figure });
  }
}

async function fetchAll() {
  const { charts: fresh } = await (await get("data/metrics.json", "application/json")).json();
  for (const [key, chart] of Object.entries(fresh)) charts.set(key, chart);
  await update(fresh);
}

async function fetchPoints() {
  // The server reads one series after another while points arrive, so their ends may differ: requests all points after
  // the end of the shortest line, and each line takes those that it does not have.
  const ends = [...charts.values()].map(lastStep).filter((step) => step >= 0);
  if (!ends.length) return fetchAll();
  const { series } = await (await get(`data/points.json?since=${Math.min(...ends)}`, "application/json")).json();
  const changed = {};
  for (const [key, points] of Object.entries(series)) {
    const chart = charts.get(key);
    if (!chart?.figure.data.length) return fetchAll();
    append(chart, points);
    changed[key] = chart;
  }
  return update(changed);
}

function append(chart, { title, step: steps, time, value }) {
  const { axes, t0 } = chart.figure.layout.meta;
  const last = lastStep(chart);
  const from = steps.findIndex((at) => at > last);
  chart.title = title;
  if (from < 0) return;
  const fresh = steps.slice(from);
  const perStep = axes.step[0].length && axes.step[0].at(-1) ? axes.samples[0].at(-1) / axes.step[0].at(-1) : 1;
  chart.figure.data[0].y.push(...value.slice(from));
  axes.step[0].push(...fresh);
  axes.samples[0].push(...fresh.map((at) => at * perStep));
  axes.seconds[0].push(...time.slice(from).map((at) => at - t0));
  chart.figure.data[0].x = axes.step[0];
}

/* Log ----------------------------------------------------------------------------------------------------------- */

const log = document.getElementById("log");

async function fetchLog() {
  for (;;) {
    const query = `rank=${log.dataset.rank}&start=${log.dataset.end}`;
    const part = await (await get(`data/log.json?${query}`, "application/json")).json();
    // A later attempt has its own log, of any length: the text that is shown belongs to the previous attempt.
    if (part.attempt !== Number(log.dataset.attempt)) {
      log.textContent = "";
      document.getElementById("log-earlier")?.remove();
      log.dataset.attempt = part.attempt;
      log.dataset.start = log.dataset.end = log.dataset.total = "0";
      continue;
    }
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 32;
    if (part.text) log.append(part.text);
    log.dataset.end = part.end;
    log.dataset.total = part.total;
    showLog();
    if (atEnd) log.scrollTop = log.scrollHeight;
    if (part.end >= part.total || !part.text) return;
  }
}

async function fetchEarlier(button) {
  const from = Math.max(0, Number(log.dataset.start) - 64 * 1024);
  const query = `rank=${log.dataset.rank}&start=${from}`;
  const part = await (await get(`data/log.json?${query}`, "application/json")).json();
  if (part.attempt !== Number(log.dataset.attempt)) return soon("log", fetchLog);
  const bytes = new TextEncoder().encode(part.text).slice(0, Number(log.dataset.start) - from);
  const height = log.scrollHeight;
  log.prepend(new TextDecoder().decode(bytes));
  log.scrollTop += log.scrollHeight - height;
  log.dataset.start = from;
  if (!from) button.remove();
  showLog();
}

function showLog() {
  const { start, end, total } = log.dataset;
  log.hidden = total === "0";
  document.getElementById("log-empty").hidden = total !== "0";
  const tail = start === "0" ? "" : `, from byte ${start} on`;
  document.getElementById("log-size").textContent = `${end - start} of ${total} bytes${tail}`;
}

/* Life ---------------------------------------------------------------------------------------------------------- */

let attempt = document.getElementById("head").dataset.attempt;

async function head() {
  await swap("head", "part/head");
  const now = document.getElementById("head").dataset.attempt;
  if (now === attempt) return;
  attempt = now;
  if (tab === "metrics") await fetchAll();
}

function news(what) {
  if (settled && what.includes("*")) {
    settled = false;
    what = ["state"]; // for a retry, and for findings that were not ready
  }
  const any = (...topics) => what.includes("*") || topics.some((topic) => what.includes(topic));
  const query = new URLSearchParams(location.search);
  if (any("state", "summary")) soon("head", head);
  if (any("points", "series", "progress", "text")) soon("head", head, SLOWEST_MS);
  if (generates) {
    if (any("text", "summary", "state")) soon("text", () => swap("text", "part/text"), 250);
    showTab(any, query);
    return;
  }
  if (any("points", "series", "memory", "summary")) soon("tiles", () => swap("tiles", "part/tiles"), 250);
  if (any("spans", "memory", "summary", "state")) soon("findings", () => swap("findings", "part/findings"), SLOWEST_MS);
  const drawn = document.querySelector("[data-chart='gantt'] .chart-box .empty") === null;
  if ((any("spans", "memory") || (!drawn && any("state", "points"))) && step === undefined) soon("gantt", () => reloadGantt(), drawn ? 250 : SLOWEST_MS);
  if (tab === "metrics" && any("points", "series")) soon("points", fetchPoints);
  showTab(any, query);
}

function showTab(any, query) {
  if (tab === "logs" && any("log", "state")) soon("log", fetchLog);
  // Tabs without topics (metrics, logs) are never replaced: their charts and text grow in place.
  if (tab in TAB_TOPICS && any(...TAB_TOPICS[tab])) soon("tab", () => swap("tab", `part/tab?${query}`), SLOWEST_MS);
}

/* Fetches the shown part of the timeline again; if the zoom changes meanwhile, the part that is then shown. */
async function reloadGantt() {
  const shown = view("gantt");
  const chart = await (await get(`data/gantt.json?${shown}`, "application/json")).json();
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
  if (event.target.id === "log-earlier") fetchEarlier(event.target);
});

if (tab === "metrics") readCharts();
if (log) {
  showLog();
  log.scrollTop = log.scrollHeight;
}
subscribe(`run:${run}`, news);
