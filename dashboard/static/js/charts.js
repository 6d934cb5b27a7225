/* Mounts and updates Plotly figures.
 *
 * A chart is  <figure class="chart" data-chart="KEY" [data-src="URL"]>  with figcaption, .sub, .chart-box, .chart-source
 * and details.chart-data (templates/parts/chart.html). Its figure is the JSON script inside it or, with data-src, that
 * of the Chart object returned by the URL. It is drawn when it comes near the screen, in the colours of the theme: every
 * "var(--name)" of a figure is replaced by the computed colour. Plotly is loaded with the first chart that is drawn.
 *
 *   import { update, reload } from "./charts.js";
 *   update({speedup: chart, ...});   // new numbers for charts of this page, by key
 *   reload("gantt");                 // fetch a data-src chart again; throws if that fails
 *   view("gantt")                    // "&from=1&to=2": the zoom of a long timeline, or ""
 *   "chartdrawn"                     // event of the <figure> after each drawing; its box has Plotly's data and layout
 */

import { lift, paint } from "./chart_bars.js";
import { offerAll, offerZoom } from "./chart_buttons.js";
import { nameCells } from "./chart_cells.js";
import { painted } from "./chart_colours.js";
import { followChoices, shape } from "./chart_curves.js";
import { fetchChart, note, reason, told } from "./chart_fetch.js";
import { empty, failed } from "./chart_notes.js";
import { picture } from "./chart_picture.js";
import "./sections.js"; // before charts are mounted: those of closed sections are not
import { followAddress, followed, followZoom, part, stay } from "./chart_zoom.js";

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, doubleClick: "reset", doubleClickDelay: 500 };
const COARSE = window.matchMedia("(pointer: coarse)");
const mounted = new Map(); // key -> {element, box, figure}
let loading = null;

function plotly() {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = document.querySelector('meta[name="plotly-src"]').content;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = null; // the next chart tries again
      reject(told(Error, "The chart library could not be loaded."));
    };
    document.head.append(script);
  });
  return loading;
}

/* Drawing ------------------------------------------------------------------------------------------------------- */

function fitted(figure, box) {
  const copy = painted(figure);
  const { layout } = copy;
  layout.uirevision = "kept"; // keeps a zoom when new numbers arrive
  layout.autosize = true;
  if (COARSE.matches) layout.dragmode = false; // a finger scrolls the page
  const wide = window.matchMedia("(min-width: 1001px)").matches;
  if (layout.meta?.sharesRows && wide && box.closest(".grid2")) layout.yaxis.showticklabels = false;
  if (box.clientWidth < 760) adopt(copy, "half");
  if (box.clientWidth < 480) {
    layout.font.size = 11;
    adopt(copy, "narrow");
    if (layout.yaxis?.tickfont) layout.yaxis.tickfont.size = 10;
    if (layout.yaxis?.ticktext) roomy(layout);
  }
  shape(copy);
  nameCells(copy.data);
  return copy;
}

/* The changes that a figure declares for half a page's width ("half") and for a phone ("narrow"). */
function adopt({ data, layout }, how) {
  for (const trace of data) Object.assign(trace, trace.meta?.[how]);
  for (const [name, axis] of Object.entries(layout.meta?.[how] ?? {})) Object.assign(layout[name], axis);
}

/* A row's label on a phone: broken into lines of about LABEL_CHARACTERS, so that the bars have most of the width. */
const LABEL_CHARACTERS = 16;
const [LABEL_LINE, LABEL_GAP] = [13, 6]; // px: height of a line of 10 px text, and the gap between rows

/* Makes rows higher if their labels need more lines. */
function roomy(layout) {
  const { yaxis, margin } = layout;
  yaxis.ticktext = yaxis.ticktext.map(wrapped);
  if (!yaxis.range || yaxis.type === "log") return; // no rows
  const lines = Math.max(...yaxis.ticktext.map((label) => label.split("<br>").length));
  const part = yaxis.domain ? yaxis.domain[1] - yaxis.domain[0] : 1;
  const rows = Math.abs(yaxis.range[1] - yaxis.range[0]);
  const short = rows * (lines * LABEL_LINE + LABEL_GAP) - (layout.height - margin.t - margin.b) * part;
  if (lines > 1 && short > 0) layout.height += Math.ceil(short / part);
}

function wrapped(label) {
  return label.split("<br>").map((line) => {
    if (line.replace(/<[^>]*>|&\w+;/g, "").length <= LABEL_CHARACTERS + 2) return line;
    const at = line.indexOf(" ", line.length / 2 - 4);
    return at < 0 ? line : `${line.slice(0, at)}<br>${line.slice(at + 1)}`;
  }).join("<br>");
}

/* Without dragging, the library takes a tap for two clicks: for the one of the finger, and for the mouse's that the browser
 * makes of it. */
const configured = ({ config }) => ({ ...CONFIG, ...config, ...(COARSE.matches ? { doubleClick: false } : {}) });

async function draw(entry) {
  if (!window.Plotly) picture(entry.figure, entry.box);
  const library = await plotly();
  const figure = fitted(entry.figure, entry.box);
  const { data, layout } = figure;
  entry.box.style.setProperty("--chart-height", `${layout.height}px`);
  if (!data.length) {
    empty(entry.box, layout.meta?.empty);
    return;
  }
  entry.box.querySelectorAll(".skeleton, .empty, .picture").forEach((node) => node.remove());
  stay(entry, layout);
  await library.react(entry.box, lift(entry.box, figure), layout, configured(figure));
  paint(entry.box);
  followZoom(entry, update);
  followAddress(entry);
  offerZoom(entry);
  offerAll(entry);
  if (layout.meta?.axes) note(entry.element, layout.meta.unshown, "scale");
  entry.element.dispatchEvent(new CustomEvent("chartdrawn", { bubbles: true }));
}

/* The zoom of a chart of the page as parameters for an address, or "". */
export function view(key) {
  const entry = mounted.get(key);
  return entry && followed(entry.box) && entry.box.layout?.xaxis ? part(entry) : "";
}

async function show(element) {
  let figure;
  if (element.dataset.src) {
    const chart = await fetchChart(element.dataset.src);
    describe(element, chart);
    figure = chart.figure;
  } else {
    figure = JSON.parse(element.querySelector("script[type='application/json']").textContent);
  }
  const entry = { element, box: element.querySelector(".chart-box"), figure };
  mounted.set(element.dataset.chart, entry);
  await draw(entry);
}

async function mount(element) {
  try {
    await show(element);
  } catch (error) {
    failed(element, error);
  }
}

/* Words and numbers around the figure ----------------------------------------------------------------------------- */

function setText(element, selector, text) {
  const node = element.querySelector(selector);
  if (node && text !== undefined && node.textContent !== text) node.textContent = text;
}

function describe(element, chart) {
  setText(element, "figcaption", chart.title);
  setText(element, ":scope > .sub", chart.subtitle);
  setText(element, ".chart-source", chart.source);
  element.querySelector(".chart-box").setAttribute("aria-label", chart.title);
  const table = element.querySelector(".chart-data table");
  if (!table || !chart.columns?.length) return;
  const head = document.createElement("tr");
  head.append(...chart.columns.map((text, i) => cell("th", text, i, "col")));
  const rows = chart.rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...row.map((text, i) => cell(i ? "td" : "th", text, i, i ? "" : "row")));
    return line;
  });
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows);
}

function cell(tag, text, index, scope) {
  const node = document.createElement(tag);
  node.textContent = text;
  if (index) node.className = "num";
  if (scope) node.scope = scope;
  return node;
}

export async function update(charts) {
  for (const [key, chart] of Object.entries(charts)) {
    const element = document.querySelector(`.chart[data-chart="${CSS.escape(key)}"]`);
    if (!element) continue;
    describe(element, chart);
    const entry = mounted.get(key);
    if (entry) {
      entry.figure = chart.figure;
      await draw(entry);
      note(element);
    } else {
      const script = element.querySelector("script[type='application/json']");
      if (script) script.textContent = JSON.stringify(chart.figure);
    }
  }
}

/* Updates a chart from a newly rendered one: moves its texts, table and figure into the existing element. */
async function renew(element, fresh) {
  for (const part of [":scope > figcaption", ":scope > .sub", ":scope > .chart-source", ".chart-data table"]) {
    const [old, next] = [element.querySelector(part), fresh.querySelector(part)];
    if (old && next) old.replaceChildren(...next.childNodes);
  }
  element.querySelector(".chart-box").setAttribute("aria-label", element.querySelector("figcaption").textContent);
  const [script, next] = [element, fresh].map((root) => root.querySelector("script[type='application/json']"));
  if (!script || !next) return;
  script.textContent = next.textContent;
  const entry = mounted.get(element.dataset.chart);
  if (!entry) return; // drawn when it comes near the screen
  entry.figure = JSON.parse(script.textContent);
  await draw(entry);
}

document.addEventListener("chartnews", (event) => {
  renew(event.target, event.detail).catch((error) => failed(event.target, error));
});

/* What was drawn stays when the fetch fails; the error is thrown on, for another attempt. */
export async function reload(key) {
  const element = document.querySelector(`.chart[data-chart="${CSS.escape(key)}"]`);
  if (!element) return;
  const unshown = element.querySelector(":scope > .chart-box > .failed") !== null;
  if (!unshown && !mounted.has(key)) return; // fetched when it comes near the screen
  try {
    if (unshown) await show(element);
    else await update({ [key]: await fetchChart(element.dataset.src) });
  } catch (error) {
    if (unshown) failed(element, error);
    else note(element, `The newest numbers are not shown. ${reason(error)} What is drawn is from before.`);
    throw error;
  }
}

/* Life ------------------------------------------------------------------------------------------------------------ */

const NEAR_PX = 300; // px below or above the screen
const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      mount(target);
    }
  },
  { rootMargin: `${NEAR_PX}px` },
);

/* Mounts the charts near the screen at once, as the observer would report them only after a first frame without them.
 * Charts that are stepped through together are all drawn, because their description uses each of them. */
function begin(element) {
  const { width, top, bottom } = element.getBoundingClientRect();
  const seen = bottom > -NEAR_PX && top < innerHeight + NEAR_PX;
  if (width && (seen || element.closest("[data-together]"))) mount(element);
  else near.observe(element);
}

export function watch(root = document) {
  if (root.querySelector(".chart[data-chart]")) plotly().catch(() => {}); // preloads; `mount` shows a failure
  for (const element of root.querySelectorAll(".chart[data-chart]")) {
    if (!mounted.get(element.dataset.chart)?.element.isConnected) begin(element);
  }
}

/* Printing includes charts that have not been scrolled to, if their numbers are on the page. */
window.addEventListener("beforeprint", () => {
  for (const element of document.querySelectorAll(".chart[data-chart]:not([data-src])")) {
    if (mounted.get(element.dataset.chart)?.element.isConnected || !element.offsetWidth) continue;
    near.unobserve(element);
    mount(element);
  }
});

document.addEventListener("htmx:afterSettle", (event) => watch(event.target)); // new parts of the page
document.addEventListener("themechange", () => {
  for (const entry of mounted.values()) draw(entry);
});
window.matchMedia("(min-width: 1001px)").addEventListener("change", () => {
  for (const entry of mounted.values()) draw(entry);
});
followChoices(() => {
  for (const entry of mounted.values()) if (entry.figure.layout.meta?.axes) draw(entry);
});
watch();
