/* A figure as it is drawn: in the colours of the theme, and fitted to the width of its box. */

import { nameCells } from "./chart_cells.js";
import { painted } from "./chart_colours.js";
import { shape } from "./chart_curves.js";

export const COARSE = window.matchMedia("(pointer: coarse)");
const [HALF, NARROW] = [760, 480]; // px: below these widths, a figure's changes of the same name apply

/* What of a box's width decides how its figure is drawn. */
export const widthClass = ({ clientWidth }) => (clientWidth < NARROW ? "narrow" : clientWidth < HALF ? "half" : "wide");

export function fitted(figure, box) {
  const copy = painted(figure);
  const { layout } = copy;
  const width = widthClass(box);
  layout.uirevision = "kept"; // keeps a zoom when new numbers arrive
  layout.autosize = true;
  if (COARSE.matches) layout.dragmode = false; // a finger scrolls the page
  const wide = window.matchMedia("(min-width: 1001px)").matches;
  if (layout.meta?.sharesRows && wide && box.closest(".grid2")) layout.yaxis.showticklabels = false;
  if (width !== "wide") adopt(copy, "half");
  if (width === "narrow") {
    layout.font.size = 11;
    adopt(copy, "narrow");
    if (layout.yaxis?.tickfont) layout.yaxis.tickfont.size = 10;
    if (layout.yaxis?.ticktext) roomy(layout);
  }
  shape(copy);
  if (width === "narrow" && layout.showlegend && layout.meta?.axes) stacked(copy);
  nameCells(copy.data);
  leaveOut(copy.data);
  return copy;
}

/* The changes that a figure declares for half a page's width ("half") and for a phone ("narrow"). */
function adopt({ data, layout }, how) {
  for (const trace of data) Object.assign(trace, trace.meta?.[how]);
  for (const [name, axis] of Object.entries(layout.meta?.[how] ?? {})) Object.assign(layout[name], axis);
}

/* A whisker of length null is none: the library would take it for 0 and draw the caps. */
function leaveOut(data) {
  for (const { error_x: whiskers } of data) {
    for (const side of ["array", "arrayminus"]) if (whiskers) whiskers[side] = whiskers[side].map((length) => length ?? Number.NaN);
  }
}

/* A row's label on a phone: broken into lines of about LABEL_CHARACTERS, so that the bars have most of the width. */
const LABEL_CHARACTERS = 16;
const NEAR = 4; // characters from its middle that a label may be broken
const [LABEL_LINE, LABEL_GAP] = [13, 6]; // px: height of a line of 10 px text, and the gap between rows

const [LEGEND_LINE, LEGEND_COLUMNS] = [19, 4]; // px, and as in dashboard/charts/loss.py

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

/* A legend of curves has a row for each name on a phone, which must not come out of the room for the curves. */
function stacked({ data, layout }) {
  const names = data.filter(({ showlegend }) => showlegend !== false).length;
  layout.height += LEGEND_LINE * (names - Math.ceil(names / LEGEND_COLUMNS));
}

function wrapped(label) {
  return label.split("<br>").map((line) => {
    if (line.replace(/<[^>]*>/g, "").replace(/&\w+;/g, "&").length <= LABEL_CHARACTERS + 2) return line;
    const at = line.indexOf(" ", line.length / 2 - NEAR);
    return at < 0 ? halved(line) : `${line.slice(0, at)}<br>${line.slice(at + 1)}`;
  }).join("<br>");
}

/* A name without a blank: broken after a sign such as _ near its middle, else in its middle; never in a tag or "&amp;". */
function halved(line) {
  const parts = line.match(/<[^>]*>|&\w+;|./gsu);
  const middle = Math.ceil(parts.length / 2);
  const near = parts.findIndex((part, i) => Math.abs(i + 1 - middle) <= NEAR && /^[-_.,:;/…]$/.test(part));
  const at = near < 0 ? middle : near + 1;
  return `${parts.slice(0, at).join("")}<br>${parts.slice(at).join("")}`;
}
