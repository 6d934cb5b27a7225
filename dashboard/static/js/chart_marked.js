/* Lines of runs that the reader has marked: drawn thick and over all others, with their names in the legend. Which ones
 * stands in the page's address, ?marked=12,15. A run is marked, or no longer, by its line, by its row of a table
 * (tr[data-run], or of the chart's numbers), or in <select data-mark-line>. */

import { painted } from "./chart_colours.js";

const LEGEND_ROW = 20; // px, as in dashboard/charts/loss.py
const INK = { line: { color: "var(--ink)" } }; // of a line that is grey otherwise
const DASHES = ["solid", "dash", "dot", "dashdot"]; // of the first such line, the second, ...

const marked = () => new Set((new URLSearchParams(location.search).get("marked") ?? "").split(",").filter(Boolean).map(Number));

/* Changes a figure whose traces say of which run they are. */
export function markLines({ data, layout }) {
  const runs = marked();
  const [own, others] = [[], []];
  for (const trace of data) (runs.has(trace.meta?.run) ? own : others).push(trace);
  if (!own.length) return;
  let added = 0;
  for (const trace of own) {
    const line = { ...trace.line, width: 4 };
    if (trace.showlegend === false) Object.assign(line, painted(INK).line, { dash: DASHES[added++ % DASHES.length] });
    Object.assign(trace, { showlegend: true, opacity: 1, legendrank: 0, line });
  }
  data.splice(0, data.length, ...others, ...own); // the last is drawn over all before it
  layout.height += LEGEND_ROW * (layout.showlegend ? added && 1 : 0);
}

function toggle(run) {
  const runs = marked();
  if (!runs.delete(run)) runs.add(run);
  choose([...runs]);
}

function choose(runs) {
  const url = new URL(location.href);
  if (runs.length) url.searchParams.set("marked", runs.join(","));
  else url.searchParams.delete("marked");
  history.replaceState(history.state, "", url.href.replaceAll("%2C", ","));
  document.dispatchEvent(new CustomEvent("marksset"));
}

/* Shows in tables and controls which runs are marked. */
function show() {
  const runs = marked();
  for (const row of document.querySelectorAll("tr[data-run]")) row.classList.toggle("is-marked", runs.has(Number(row.dataset.run)));
  for (const select of document.querySelectorAll("select[data-mark-line]")) select.value = runs.size === 1 ? [...runs][0] : "";
}

/* The run of a row of a table: it says so, or is a row of the numbers of a chart with a line of that name. */
function runOf(row, figureOf) {
  if (row.dataset.run) return Number(row.dataset.run);
  const chart = row.closest(".chart[data-chart]");
  const name = row.cells[0]?.textContent;
  return figureOf(chart)?.data.find(({ meta }) => meta?.run && meta.label === name)?.meta.run;
}

const SAME_TAP_MS = 1000;

/* Calls `redraw` after each change. `figureOf` gives the figure of a chart's element. */
export function followMarks(figureOf, redraw) {
  let touched = -Infinity; // when a finger last clicked
  document.addEventListener("click", ({ target }) => {
    const row = target.closest(".marks-lines tbody tr, .chart[data-chart] .chart-data tbody tr");
    if (!row || target.closest("a, button, input, summary") || String(getSelection())) return;
    const run = runOf(row, figureOf);
    if (run) toggle(run);
  });
  document.addEventListener("change", ({ target }) => {
    if (target.matches("select[data-mark-line]")) choose(target.value ? [target.value] : []);
  });
  document.addEventListener("chartdrawn", ({ target }) => {
    const box = target.querySelector(".chart-box");
    if (!box.layout?.meta?.axes) return;
    box.removeAllListeners("plotly_click"); // of the drawing before
    box.on("plotly_click", ({ points, event }) => {
      // Of a tap the browser makes a second click, by a mouse: it would take the mark off again.
      const byTouch = event.type.startsWith("touch");
      if (byTouch) touched = event.timeStamp;
      else if (event.timeStamp - touched < SAME_TAP_MS) return;
      const run = points[0]?.data.meta?.run;
      if (run) toggle(run);
    });
  });
  document.addEventListener("marksset", () => {
    show();
    redraw();
  });
  document.addEventListener("morphed", show);
  show();
}
