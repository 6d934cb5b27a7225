/* Zoom of a long timeline: fetches the part that is shown, and keeps it in the page's address. */

import { fetchChart, note, reason } from "./chart_fetch.js";
import { COARSE } from "./chart_fit.js";

const following = new WeakSet(); // boxes with a listener of `followZoom`
const addressed = new WeakSet(); // the same of `followAddress`
const homed = new WeakSet(); // the same of `followHome`

export const followed = (box) => following.has(box);

/* The listeners of a box go when the library lets go of it. */
export function unfollow(box) {
  following.delete(box);
  addressed.delete(box);
  homed.delete(box);
}

/* The axes of a figure before any zoom, for `relayout`. */
export function home({ layout }) {
  const axes = Object.entries(layout).filter(([name, axis]) => /^[xy]axis\d*$/.test(name) && !axis.fixedrange);
  return Object.fromEntries(axes.map(([name, { range }]) => (range ? [`${name}.range`, [...range]] : [`${name}.autorange`, true])));
}

/* A double-click leads to the axes of the newest figure, `entry.home`: the library itself would lead to those of the
 * first. From the first view of a figure with meta.above it leads to all values. A tap is no double-click. */
export function followHome(entry) {
  if (homed.has(entry.box)) return;
  homed.add(entry.box);
  entry.box.on("plotly_doubleclick", () => {
    if (!entry.home || COARSE.matches) return;
    const all = entry.first && atHome(entry);
    window.Plotly.relayout(entry.box, all ? { "yaxis.autorange": true } : structuredClone(entry.home));
  });
}

/* Whether the box shows the axes of `entry.home`. */
function atHome({ box, home: axes }) {
  return Object.entries(axes).every(([path, wanted]) => {
    const [name, key] = path.split(".");
    const now = box.layout[name]?.[key];
    return Array.isArray(wanted) ? wanted.every((value, i) => Number(now?.[i]) === Number(value)) : now === wanted;
  });
}

/* A figure with meta.window shows a part of the bars: after a zoom its part is fetched; the newest request wins. */
export function followZoom(entry, update) {
  if (!entry.figure.layout.meta?.window || following.has(entry.box)) return;
  following.add(entry.box);
  let asked = 0;
  entry.box.on("plotly_relayout", async (change) => {
    const src = entry.figure.layout.meta?.window;
    if (!src || !Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
    const mine = ++asked;
    try {
      const chart = await fetchChart(src + part(entry));
      if (mine !== asked) return;
      await update({ [entry.element.dataset.chart]: chart });
    } catch (error) {
      if (error.status === 404) return location.reload(); // deleted: the page says so
      if (mine !== asked) return;
      note(entry.element, `This part could not be fetched. ${reason(error)} What is drawn is of the zoom before; zoom again to try once more.`);
    }
  });
}

/* Zooms a figure with meta.addressed to ?from= and ?to= of the page's address, and writes later zooms there. */
export function followAddress(entry) {
  if (!entry.figure.layout.meta?.addressed || addressed.has(entry.box)) return;
  addressed.add(entry.box);
  const asked = new URLSearchParams(location.search);
  const [low, high] = ["from", "to"].map((name) => Number.parseFloat(asked.get(name)));
  entry.box.on("plotly_relayout", (change) => {
    if (!Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
    const url = new URL(location.href);
    const shown = new URLSearchParams(part(entry));
    for (const name of ["from", "to"]) {
      if (shown.has(name)) url.searchParams.set(name, String(Number(Number(shown.get(name)).toFixed(4))));
      else url.searchParams.delete(name);
    }
    history.replaceState(history.state, "", url);
  });
  if (low < high) window.Plotly.relayout(entry.box, { "xaxis.range": [low, high] });
}

/* Keeps what is shown when new numbers arrive. `entry.first` = the first range of a figure with meta.above. */
export function stay(entry, layout) {
  stayZoomed(entry, layout);
  const { meta, yaxis } = layout;
  const all = entry.first && entry.box.layout?.yaxis?.autorange === true;
  entry.first = meta?.above ? [...yaxis.range] : null;
  if (!entry.first || !all) return;
  delete yaxis.range;
  yaxis.autorange = true;
}

/* Keeps the zoom, whether it came from dragging, from a button or from the address. `entry.full` = the full axis of the
 * previous figure. */
function stayZoomed(entry, { meta, xaxis }) {
  if (!meta?.zooms) return;
  const now = entry.box.layout?.xaxis?.range?.map(Number);
  const { full } = entry;
  const [low, high] = (entry.full = [...xaxis.range]);
  if (!now || !full || now[0] >= high || now[1] <= low) return; // nothing of the new axis would be seen
  if (now[0] > full[0] || now[1] < full[1]) xaxis.range = now;
}

/* The zoom as parameters for an address; "" if the whole axis is shown. */
export function part({ box, figure }) {
  const [low, high] = box.layout.xaxis.range.map(Number);
  const [first, last] = figure.layout.xaxis.range;
  return low <= first && high >= last ? "" : `&from=${low}&to=${high}`;
}
