/* Draws many bars fast: the horizontal bars of a figure with meta.canvas are painted on a canvas between the grid and
 * the labels of the chart library, which takes 0.1 ms or more for each bar that it draws itself. The library draws axes
 * and curves and handles the zoom; this file finds the bar under the pointer. A saved picture has the library's own bars
 * (`whole`). Bars of one trace share fill, outline and hatch, as in the figures of dashboard/charts/gantt.py.
 */

const LEAST_HIT = 4; // px: least width of a bar for the pointer
const LEAST_OUTLINED = 3; // px: narrower bars have no outline, which would hide them
const PAD = 3; // px between a number and the ends of its bar
const SIZES = [11, 10, 9]; // px: font sizes of a number; the largest that fits is used
const PRINT_RATIO = 3;
const TILE = 48; // px: size of a hatch pattern before scaling
const HATCH_OPACITY = 0.5; // as the library's over a fill
const layers = new WeakMap(); // box -> {box, data, canvas, tip}
let printing = false;

const lifted = (trace) => trace.type === "bar" && trace.orientation === "h" && Array.isArray(trace.base);

/* The figure for the library to draw: without bars if it has meta.canvas; these are kept for `paint`. */
export function lift(box, { data, layout }) {
  const layer = layers.get(box);
  if (!layout.meta?.canvas) {
    drop(box);
    return data;
  }
  if (layer) layer.data = data;
  else layers.set(box, begun(box, data));
  return data.map((trace) => (lifted(trace) ? { type: "scatter", mode: "none", name: trace.name, x: [null], y: [null], hoverinfo: "skip" } : trace));
}

function drop(box) {
  layers.get(box)?.canvas.remove();
  layers.get(box)?.tip.remove();
  layers.delete(box);
}

/* For a box that the library lets go of, and with it of the listeners of `follow`. */
export function forget(box) {
  drop(box);
  delete box.dataset.bars;
}

/* Everything that is drawn in a box, including bars. */
export const whole = (box) => layers.get(box)?.data ?? box.data;

function begun(box, data) {
  const [canvas, tip] = ["canvas", "div"].map((tag) => document.createElement(tag));
  canvas.className = "bars";
  tip.className = "bar-tip";
  for (const own of [canvas, tip]) own.setAttribute("aria-hidden", "true");
  tip.hidden = true;
  return { box, data, canvas, tip };
}

/* Painting ------------------------------------------------------------------------------------------------------- */

/* The rectangle of the plot in px of the box, and the functions of its axes from values to px. */
function placed(box, across = box.layout.xaxis.range) {
  const area = box.querySelector(".nsewdrag[data-subplot='xy']");
  const [left, top, width, height] = ["x", "y", "width", "height"].map((name) => Number(area.getAttribute(name)));
  const [low, high] = across.map(Number);
  const [bottom, upper] = box.layout.yaxis.range;
  return {
    left, top, width, height,
    x: (value) => ((value - low) / (high - low)) * width,
    y: (value) => ((upper - value) / (upper - bottom)) * height,
  };
}

/* Left, top, right and bottom of bar i of a trace. */
function edges(trace, i, at) {
  const [a, b] = [at.y(trace.y[i] - trace.width[i] / 2), at.y(trace.y[i] + trace.width[i] / 2)];
  return [at.x(trace.base[i]), Math.min(a, b), at.x(trace.base[i] + trace.x[i]), Math.max(a, b)];
}

/* Paints the bars of a box for the visible part of the axis, `across`. */
export function paint(box, { across } = {}) {
  const layer = layers.get(box);
  const ground = box.querySelector(".svg-container");
  if (!layer || !ground) return;
  if (!layer.canvas.isConnected) {
    ground.querySelector(".main-svg").after(layer.canvas);
    ground.append(layer.tip);
    follow(layer);
  }
  const at = placed(box, across);
  const { canvas } = layer;
  const ratio = printing ? PRINT_RATIO : window.devicePixelRatio;
  [canvas.width, canvas.height] = [at.width * ratio, at.height * ratio].map(Math.round);
  Object.assign(canvas.style, { left: `${at.left}px`, top: `${at.top}px`, width: `${at.width}px`, height: `${at.height}px` });
  const context = canvas.getContext("2d");
  context.scale(canvas.width / at.width, canvas.height / at.height);
  const drawn = layer.data.filter(lifted).map((trace) => ({ trace, bars: inView(trace, at) }));
  const size = fitting(context, drawn, box.layout.font.family);
  for (const { trace, bars } of drawn) {
    fill(context, trace, bars);
    number(context, trace, bars, size);
  }
  layer.tip.hidden = true;
}

/* [i, left, top, right, bottom] of the bars within the plot; a bar with any duration is at least one pixel wide. */
function inView(trace, at) {
  const out = [];
  for (let i = 0; i < trace.base.length; i += 1) {
    let [left, top, right, bottom] = edges(trace, i, at);
    if (right < 0 || left > at.width || !(trace.x[i] > 0)) continue;
    [left, right] = [Math.max(left, -2), Math.min(right, at.width + 2)];
    if (right - left < 2) [left, right] = [Math.floor(left), Math.max(Math.ceil(right), Math.floor(left) + 1)];
    out.push([i, left, top, right, bottom]);
  }
  return out;
}

function fill(context, { marker }, bars) {
  const fills = [marker.color, ...(marker.pattern ? [hatch(context, marker.pattern)] : [])];
  [context.strokeStyle, context.lineWidth] = [marker.line.color, marker.line.width];
  for (const [, left, top, right, bottom] of bars) {
    for (const own of fills) {
      context.fillStyle = own;
      context.fillRect(left, top, right - left, bottom - top);
    }
    if (right - left >= LEAST_OUTLINED || marker.line.width > 1) context.strokeRect(left, top, right - left, bottom - top);
  }
}

/* Lines rising to the right, like the library's pattern "/". */
function hatch(context, { fgcolor, size, solidity }) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = TILE;
  const own = tile.getContext("2d");
  [own.strokeStyle, own.lineWidth, own.globalAlpha] = [fgcolor, solidity * TILE * Math.SQRT1_2, HATCH_OPACITY];
  for (const shift of [-TILE, 0, TILE]) {
    own.beginPath();
    own.moveTo(shift - TILE, 2 * TILE);
    own.lineTo(shift + 2 * TILE, -TILE);
    own.stroke();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale((size * Math.SQRT2) / TILE));
  return pattern;
}

/* All numbers have one size: the largest of SIZES that fits into every bar with room for the smallest. */
function fitting(context, drawn, family) {
  const roomOf = roomIn(context, family);
  const least = SIZES.at(-1);
  const rooms = drawn.flatMap(({ trace, bars }) => numbered(trace, bars).map((bar) => roomOf(trace, bar))).filter((room) => room >= least);
  const px = SIZES.find((size) => rooms.every((room) => room >= size)) ?? least;
  return { font: `${px}px ${family}`, fits: (trace, bar) => roomOf(trace, bar) >= px };
}

const numbered = (trace, bars) => (trace.text && trace.textposition !== "none" ? bars.filter(([i]) => trace.text[i]) : []);

/* The largest font size that the number of a bar could have. */
function roomIn(context, family) {
  const known = new Map(); // text -> its width at 1 px
  context.font = `100px ${family}`;
  return ({ text }, [i, left, top, right, bottom]) => {
    if (!known.has(text[i])) known.set(text[i], context.measureText(text[i]).width / 100);
    return Math.min((right - left - 2 * PAD) / known.get(text[i]), bottom - top);
  };
}

function number(context, trace, bars, { font, fits }) {
  const own = numbered(trace, bars).filter((bar) => fits(trace, bar));
  if (!own.length) return;
  [context.font, context.fillStyle] = [font, trace.insidetextfont.color];
  [context.textAlign, context.textBaseline] = ["center", "middle"];
  for (const [i, left, top, right, bottom] of own) context.fillText(trace.text[i], (left + right) / 2, (top + bottom) / 2);
}

/* Pointer and axes ------------------------------------------------------------------------------------------------ */

function follow(layer) {
  const { box, tip } = layer;
  if (box.dataset.bars) return;
  box.dataset.bars = "followed";
  for (const name of ["plotly_afterplot", "plotly_relayout"]) box.on(name, () => paint(box));
  box.on("plotly_relayouting", (change) => {
    const across = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (across.every(Number.isFinite)) paint(box, { across });
  });
  // Properties, as the box keeps them when the library has let go of it.
  // A finger leaves as soon as it is up: its text stays until the next tap.
  box.onpointermove = box.onpointerup = (event) => point(layers.get(box), event);
  box.onpointerleave = ({ pointerType }) => {
    if (pointerType !== "touch") (layers.get(box) ?? { tip }).tip.hidden = true;
  };
}

/* The text at the pointer: of overlapping bars, that of the top one. */
function point(layer, event) {
  if (!layer) return;
  const { box, tip, canvas } = layer;
  const plot = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - plot.left, event.clientY - plot.top];
  const inside = x >= 0 && x <= plot.width && y >= 0 && y <= plot.height;
  const text = inside && !event.buttons ? said(layer.data, x, y, placed(box)) : undefined;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text.replaceAll("<br>", "\n");
  const ground = box.querySelector(".svg-container").getBoundingClientRect();
  const [right, below] = [event.clientX - ground.left + 12, event.clientY - ground.top + 16];
  const left = right + tip.offsetWidth <= ground.width ? right : Math.max(0, right - tip.offsetWidth - 24);
  const top = below + tip.offsetHeight <= ground.height ? below : Math.max(0, below - tip.offsetHeight - 32);
  Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
}

function said(data, x, y, at) {
  for (const trace of data.filter((one) => lifted(one) && one.hoverinfo !== "skip").reverse()) {
    for (let i = trace.base.length - 1; i >= 0; i -= 1) {
      const [left, top, right, bottom] = edges(trace, i, at);
      const wider = Math.max(0, LEAST_HIT - (right - left)) / 2;
      if (y >= top && y <= bottom && x >= left - wider && x <= right + wider) return trace.customdata[i];
    }
  }
  return undefined;
}

/* Plotly may draw again for the width of the paper before printing; the bars are then painted again as well. */
function forPrinter(now) {
  printing = now;
  document.querySelectorAll(".chart-box").forEach((box) => paint(box));
}

window.addEventListener("beforeprint", () => forPrinter(true));
window.addEventListener("afterprint", () => forPrinter(false));
