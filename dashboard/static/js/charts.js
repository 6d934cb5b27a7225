/* Mounts and updates Plotly figures.
 *
 * A chart is  <figure class="chart" data-chart="KEY" [data-src="URL"]>  with figcaption, .sub, .chart-frame > .chart-box, .chart-source
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
import { followChoices } from "./chart_curves.js";
import { fetchChart, fetchChartNow, note, reason, told } from "./chart_fetch.js";
import { COARSE, fitted, widthClass } from "./chart_fit.js";
import { followMarks } from "./chart_marked.js";
import { empty, failed } from "./chart_notes.js";
import { picture } from "./chart_picture.js";
import "./sections.js"; // before charts are mounted: those of closed sections are not
import { followAddress, followed, followHome, followZoom, home, part, stay } from "./chart_zoom.js";
import { setWholeWords } from "./whole_words.js";

/* Without dragging, the library takes a tap for two clicks: for the one of the finger, and for the mouse's that the browser
 * makes of it, which then leaves the chart. It would draw again or hide the text of what was tapped: with a finger there is
 * no double-click, nor the library's tip to make one, and the text stays until the next tap. What a double-click of a
 * mouse does is in `followHome`. */
const TAPS = COARSE.matches ? { doubleClickDelay: 0, showTips: false } : { doubleClickDelay: 500 };
const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, doubleClick: false, ...TAPS };
const mounted = new Map(); // key -> {element, box, figure, width}
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

let turns = Promise.resolve();

/* The next task of the browser, or the one after those that others wait for already. */
function ownTask() {
  turns = turns.then(() => new Promise((begin) => setTimeout(begin)));
  return turns;
}

/* Charts that are `queued` are drawn in a task each, from the top of the page: all at once, they kept it from answering,
 * and the first of them from being seen, until the last one was done. */
async function draw(entry, queued = false) {
  if (!window.Plotly) picture(entry.figure, entry.box);
  const library = await plotly();
  if (queued) await ownTask();
  if (!entry.element.isConnected) return; // what is drawn in it now would never be released
  entry.width = widthClass(entry.box);
  const figure = fitted(entry.figure, entry.box);
  const { data, layout } = figure;
  entry.box.style.setProperty("--chart-height", `${layout.height}px`);
  if (!data.length) {
    empty(entry.box, layout.meta?.empty);
    return;
  }
  entry.box.querySelectorAll(".skeleton, .empty, .picture").forEach((node) => node.remove());
  entry.home = home(figure);
  stay(entry, layout);
  await library.react(entry.box, lift(entry.box, figure), layout, CONFIG);
  if (!entry.element.isConnected) return;
  paint(entry.box);
  followHome(entry);
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

async function show(element, fetched = fetchChart) {
  let figure;
  if (element.dataset.src) {
    const chart = await fetched(element.dataset.src);
    if (!element.isConnected) return; // another one with its key may be mounted by now
    describe(element, chart);
    figure = chart.figure;
  } else {
    figure = JSON.parse(element.querySelector("script[type='application/json']").textContent);
  }
  const entry = { element, box: element.querySelector(".chart-box"), figure };
  mounted.set(element.dataset.chart, entry);
  widths.observe(entry.box);
  if (COARSE.matches) entry.box.addEventListener("mouseout", (event) => event.stopPropagation(), { capture: true });
  await draw(entry, fetched !== fetchChartNow); // what is printed does not wait
}

async function mount(element, fetched) {
  try {
    await show(element, fetched);
  } catch (error) {
    failed(element, error);
  }
}

/* Words and numbers around the figure ----------------------------------------------------------------------------- */

function setText(element, selector, text, set) {
  const node = element.querySelector(selector);
  if (node && text !== undefined && node.textContent !== text) set(node, text);
}

function describe(element, chart) {
  setText(element, "figcaption", chart.title, setWholeWords);
  setText(element, ":scope > .sub", chart.subtitle, setWholeWords);
  setText(element, ".chart-source", chart.source, (node, text) => (node.textContent = text));
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
  const unshown = element.querySelector(".chart-box > .failed") !== null;
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

/* Draws a chart again for a width that its figure is fitted to in another way. */
const widths = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const entry = mounted.get(target.closest(".chart")?.dataset.chart);
    if (entry?.box !== target || !entry.width || !target.clientWidth || entry.width === widthClass(target)) continue;
    requestAnimationFrame(() => draw(entry)); // not within the observer, as drawing changes heights
  }
});

/* Lets go of charts that are no longer in the page: the library's listeners on the window would hold them forever. */
function releaseGone() {
  for (const [key, { element, box }] of mounted) {
    if (element.isConnected) continue;
    mounted.delete(key);
    widths.unobserve(box);
    window.Plotly?.purge(box);
  }
}

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
  releaseGone();
  if (root.querySelector(".chart[data-chart]")) plotly().catch(() => {}); // preloads; `mount` shows a failure
  for (const element of root.querySelectorAll(".chart[data-chart]")) {
    if (!mounted.get(element.dataset.chart)?.element.isConnected) begin(element);
  }
}

/* Printing includes charts that have not been scrolled to. The paper shows what is there when this listener returns. */
window.addEventListener("beforeprint", () => {
  for (const element of document.querySelectorAll(".chart[data-chart]")) {
    const entry = mounted.get(element.dataset.chart);
    if (entry?.element.isConnected) {
      if (!entry.width) draw(entry).catch((error) => failed(element, error)); // its turn is still to come
    } else if (element.offsetWidth) {
      near.unobserve(element);
      mount(element, fetchChartNow);
    }
  }
});

document.addEventListener("htmx:afterSettle", (event) => watch(event.target)); // new parts of the page
document.addEventListener("morphed", releaseGone);
document.addEventListener("themechange", () => {
  for (const entry of mounted.values()) draw(entry);
});
window.matchMedia("(min-width: 1001px)").addEventListener("change", () => {
  for (const entry of mounted.values()) draw(entry);
});
function redrawCurves() {
  for (const entry of mounted.values()) if (entry.figure.layout.meta?.axes) draw(entry);
}
followChoices(redrawCurves);
followMarks((element) => mounted.get(element.dataset.chart)?.figure, redrawCurves);
watch();
