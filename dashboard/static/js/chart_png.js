/* Saves a chart as PNG on a click on [data-chart-png], with its finding, quantity and source. */

import { whole } from "./chart_bars.js";
import { colour, paint } from "./lanes_picture.js";

const SCALE = 2;
const LEAST = 640; // px: least width
const EDGE = 16; // px: margin
const GAP = 8; // px between the texts and the chart
const PARTS = [
  // texts of the page: selector, font size, weight, line height and colour
  { selector: ":scope > figcaption, :scope > .row > h2", size: 15, weight: 600, line: 20, ink: "--ink" },
  { selector: ":scope > .sub", size: 13, weight: 400, line: 18, ink: "--ink-2" },
];
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
  const head = PARTS.reduce((sum, part) => sum + tall(part), 0);
  const lanes = box.matches(".lanes");
  const image = lanes ? null : await drawn(box, width, height);
  [canvas.width, canvas.height] = [width + 2 * EDGE, head + height + tall(SOURCE) + 2 * (EDGE + GAP)].map((px) => px * SCALE);
  context.scale(SCALE, SCALE);
  context.fillStyle = colour("--surface");
  context.fillRect(0, 0, canvas.width, canvas.height);
  const below = PARTS.reduce((top, part) => written(context, figure, part, said.get(part), top), EDGE);
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
