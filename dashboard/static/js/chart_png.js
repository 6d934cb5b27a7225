/* Saves a chart as PNG on a click on [data-chart-png], with its finding, quantity and source, and of the page's legends
 * the colours that it has. */

import { whole } from "./chart_bars.js";
import { colour, hatch, paint, within } from "./lanes_picture.js";

const SCALE = 2;
const LEAST = 640; // px: least width
const EDGE = 16; // px: margin
const GAP = 8; // px between the texts and the chart
const PARTS = [
  // texts of the page: selector, font size, weight, line height and colour
  { selector: ":scope > figcaption, :scope > .row > h2", size: 15, weight: 600, line: 20, ink: "--ink" },
  { selector: ":scope > .sub", size: 13, weight: 400, line: 18, ink: "--ink-2" },
];
const KEY = { size: 12, weight: 400, line: 20, ink: "--ink-2" };
const [SWATCH, BESIDE, APART] = [12, 6, 16]; // px: side of a colour, from it to its name, and to the next one
const SOURCE = { selector: ":scope > .chart-source", size: 12, weight: 400, line: 16, ink: "--ink-2" };

/* The text of a part broken into lines of at most `width` px. */
function lines(context, figure, part, width) {
  const text = figure.querySelector(part.selector)?.textContent.trim() ?? "";
  context.font = `${part.weight} ${part.size}px ${getComputedStyle(figure).fontFamily}`;
  const out = [];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const longer = out.length ? `${out.at(-1)} ${word}` : word;
    if (out.length && context.measureText(longer).width <= width) out[out.length - 1] = longer;
    else out.push(word);
  }
  return out;
}

/* Paints the lines of a part from `top` on; returns the y at which they end. */
function written(context, figure, part, said, top) {
  context.font = `${part.weight} ${part.size}px ${getComputedStyle(figure).fontFamily}`;
  context.fillStyle = colour(part.ink);
  context.textBaseline = "middle";
  said.forEach((line, i) => context.fillText(line, EDGE, top + (i + 0.5) * part.line));
  return top + said.length * part.line;
}

/* The colours of bars, areas and cells of a figure, as the browser writes them. */
function fills(box) {
  const own = whole(box).map(({ type, marker, fillcolor, colorscale }) => [type === "bar" && [marker.color, marker.line?.color], fillcolor, colorscale]);
  return new Set(JSON.stringify(own).match(/rgb\([^)]*\)/g));
}

/* What the page's legends say of the figure's colours, with its place below the texts: {name, fill, x, row}. */
function key(context, figure, box, width) {
  const [has, said] = [fills(box), new Map()];
  for (const item of document.querySelectorAll(".legend > li")) {
    const { phase, category } = item.dataset;
    const fill = phase === "other" ? "--line-strong" : phase ? `--phase-${phase}` : `--memory-${category}`;
    if (has.has(colour(fill))) said.set(fill, item.textContent);
  }
  context.font = `${KEY.weight} ${KEY.size}px ${getComputedStyle(figure).fontFamily}`;
  let [x, row] = [0, 0];
  return [...said].map(([fill, name]) => {
    const wide = SWATCH + BESIDE + context.measureText(name).width;
    if (x && x + wide > width) [x, row] = [0, row + 1];
    const placed = { name, fill, x, row };
    x += wide + APART;
    return placed;
  });
}

function paintKey(context, figure, names, top) {
  context.font = `${KEY.weight} ${KEY.size}px ${getComputedStyle(figure).fontFamily}`;
  context.textBaseline = "middle";
  for (const { name, fill, x, row } of names) {
    const at = new DOMRect(EDGE + x, top + row * KEY.line + (KEY.line - SWATCH) / 2, SWATCH, SWATCH);
    if (fill === "--phase-idle") within(context, at, () => hatch(context, at));
    else {
      context.fillStyle = colour(fill);
      context.fillRect(at.x, at.y, SWATCH, SWATCH);
    }
    context.fillStyle = colour(KEY.ink);
    context.fillText(name, at.right + BESIDE, at.y + SWATCH / 2);
  }
}

/* The chart as shown on the page, without its own title. */
async function drawn(box, width, height) {
  const layout = { ...structuredClone(box.layout), autosize: false, width, height };
  const image = new Image();
  image.src = await window.Plotly.toImage({ data: whole(box), layout }, { format: "png", scale: SCALE, width, height });
  await image.decode();
  return image;
}

async function picture(figure, box) {
  const width = Math.max(box.clientWidth, LEAST);
  const height = box.layout?.height ?? box.clientHeight;
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const said = new Map([...PARTS, SOURCE].map((part) => [part, lines(context, figure, part, width)]));
  const tall = (part) => said.get(part).length * part.line;
  const lanes = box.matches(".lanes");
  const names = lanes ? [] : key(context, figure, box, width);
  const head = PARTS.reduce((sum, part) => sum + tall(part), names.length && (1 + names.at(-1).row) * KEY.line);
  const image = lanes ? null : await drawn(box, width, height);
  [canvas.width, canvas.height] = [width + 2 * EDGE, head + height + tall(SOURCE) + 2 * (EDGE + GAP)].map((px) => px * SCALE);
  context.scale(SCALE, SCALE);
  context.fillStyle = colour("--surface");
  context.fillRect(0, 0, canvas.width, canvas.height);
  paintKey(context, figure, names, PARTS.reduce((top, part) => written(context, figure, part, said.get(part), top), EDGE));
  const below = EDGE + head;
  if (lanes) paint(context, box, EDGE, below + GAP);
  else context.drawImage(image, EDGE, below + GAP, width, height);
  written(context, figure, SOURCE, said.get(SOURCE), below + height + 2 * GAP);
  return canvas;
}

async function save(button) {
  const figure = button.closest("[data-chart]");
  const box = figure.querySelector(".chart-box, .lanes");
  if (!box.matches(".lanes") && (!window.Plotly || !box.data?.length)) return;
  button.disabled = true;
  try {
    const link = document.createElement("a");
    link.href = (await picture(figure, box)).toDataURL("image/png");
    link.download = `${document.title.split(" · ")[0]} ${figure.dataset.chart}.png`.replace(/[^\p{L}\p{N} ._-]/gu, "");
    link.click();
  } finally {
    button.disabled = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-chart-png]");
  if (button) save(button);
});
