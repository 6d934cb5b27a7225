/* Curves over steps (figures with meta.axes): what is across, smoothing and the scale, as chosen for the whole page in
 * <select data-curves="axis | smoothing | scale"> (templates/parts/curves.html) and kept in the page's address. */

import { markLines } from "./chart_marked.js";

const CHOICES = { axis: ["step", "samples", "seconds"], smoothing: ["none", "light", "strong"], scale: ["linear", "log"] }; // first = default
const FACTORS = { light: 0.9, strong: 0.98 };
const LEGEND_ROW = 20; // px, as in dashboard/charts/loss.py
const FAINT = 0.3; // opacity of the points under their average

function chosen(name) {
  const asked = new URLSearchParams(location.search).get(name);
  return CHOICES[name].includes(asked) ? asked : CHOICES[name][0];
}

/* Changes a figure to what is chosen. */
export function shape(figure) {
  const { data, layout } = figure;
  const axes = layout.meta?.axes;
  if (!axes) return;
  const axis = chosen("axis");
  data.forEach((trace, i) => {
    if (axes[axis][i]) trace.x = axes[axis][i];
  });
  layout.xaxis.title.text = axis;
  layout.uirevision = `axis-${axis}`;
  if (!data.length) return;
  markLines(figure);
  if (chosen("scale") === "log") logarithmic(figure);
  const factor = FACTORS[chosen("smoothing")];
  if (factor) smooth(figure, factor);
}

/* Exponential moving average: m = factor m + (1 - factor) value, from m = 0, divided by 1 - factor^n after n values, as
 * Adam corrects its moments for their start (Kingma and Ba 2015, algorithm 1). What is no number is a gap, and is not
 * counted.
 *
 * A point of a thinned line stands for `count` values of this `mean` (parallel_core/analysis/downsample.py), else for
 * itself. The extremes that are drawn alone would move the average. `factor` is for as many values as a point of the
 * line stands for on average, so later points, each of one value, count as much as they should. */
export function averaged(values, factor, { mean = [], count = [] } = {}) {
  const usual = count.length ? count.reduce((sum, one) => sum + one, 0) / count.length : 1;
  let [moment, weight] = [0, 0]; // weight = 1 - factor^n
  return values.map((value, i) => {
    const finite = Number.isFinite(value);
    const kept = factor ** ((count[i] ?? Number(finite)) / usual);
    moment = kept * moment + (1 - kept) * (mean[i] ?? value ?? 0);
    weight = kept * weight + (1 - kept);
    return finite ? moment / weight : null;
  });
}

/* Adds the average of each line over the line itself, which becomes faint. */
function smooth({ data, layout }, factor) {
  const added = data.flatMap((raw, i) => {
    if (raw.meta?.whole) return []; // points of earlier attempts are faint already, a held-out loss is a mean already
    const same = { legendgroup: `line ${i}` }; // a click in the legend hides both
    const average = { ...raw, ...same, y: averaged(raw.y, factor, raw.meta), line: { ...raw.line, width: 2.25 } };
    average.hovertemplate = `${raw.name}, smoothed: %{y:.6g}<extra></extra>`;
    Object.assign(raw, same, { mode: "lines", opacity: FAINT, showlegend: false });
    return [average];
  });
  data.push(...added);
  layout.height += LEGEND_ROW * (layout.showlegend ? 1 : 2);
  const text = `thick: moving average, factor ${factor}; faint: each point`;
  layout.legend = { ...layout.legend, title: { text, side: "top", font: { size: 12 } } };
  // Without smoothing there would be no legend to show the only line again.
  if (!layout.showlegend) Object.assign(layout.legend, { itemclick: false, itemdoubleclick: false });
  layout.showlegend = true;
}

/* A logarithmic scale, if there is anything above 0; meta.unshown says how many values it cannot show. */
function logarithmic({ data, layout }) {
  const { yaxis } = layout;
  const numbers = data.flatMap(({ y }) => y).filter(Number.isFinite);
  const above = numbers.filter((value) => value > 0);
  const lost = numbers.length - above.length;
  if (lost) layout.meta.unshown = `${lost} of ${numbers.length} values are not above 0: a logarithmic scale cannot show them.`;
  if (!above.length) return;
  if (yaxis.range) yaxis.range = [above.reduce((least, value) => Math.min(least, value)), yaxis.range[1]].map(Math.log10);
  Object.assign(yaxis, { type: "log", minorloglabels: "complete", uirevision: `${layout.uirevision}-log` });
  yaxis.title.text += ", logarithmic";
}

/* Shows in the controls what is chosen, and calls `redraw` after each change. */
export function followChoices(redraw) {
  const show = () => {
    for (const control of document.querySelectorAll("[data-curves]")) control.value = chosen(control.dataset.curves);
    for (const words of document.querySelectorAll("[data-smoothed]")) words.hidden = chosen("smoothing") === "none";
  };
  document.addEventListener("change", ({ target }) => {
    const name = target.dataset?.curves;
    if (!name) return;
    const url = new URL(location.href);
    if (target.value === CHOICES[name][0]) url.searchParams.delete(name);
    else url.searchParams.set(name, target.value);
    history.replaceState(history.state, "", url);
    show();
    redraw();
  });
  show();
}
