/* A preview of a heatmap: while the chart library is being loaded, its bins are shown where the library will draw them.
 * Axes and hover texts come with the library. */

import { painted } from "./chart_colours.js";

export function picture(figure, box) {
  const { data, layout } = figure;
  const map = data.length === 1 && data[0].type === "heatmap" ? data[0] : null;
  if (!map || !box.clientWidth) return;
  const rows = map.z.length;
  const columns = map.z[0].length;
  const canvas = document.createElement("canvas");
  canvas.className = "picture";
  canvas.setAttribute("aria-hidden", "true");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const colours = painted(map.colorscale.filter((_, i) => i % 2 === 0).map(([, colour]) => colour));
  map.z.forEach((row, y) => {
    for (let x = 0, from = 0; x < columns; x += 1) {
      if (x + 1 < columns && row[x + 1] === row[x]) continue;
      context.fillStyle = colours[row[x]];
      context.fillRect(from, y, x + 1 - from, 1);
      from = x + 1;
    }
  });
  place(canvas, layout, map, box);
  box.querySelector(".skeleton")?.remove();
  box.append(canvas);
  performance.mark("picture");
}

/* The rectangle of the bins: the plot inside the margins and row labels, as far as the bins extend on the axis. */
function place(canvas, layout, map, box) {
  const { l, r, t, b } = layout.margin;
  const [low, high] = layout.xaxis.range;
  const [bottom, top] = layout.yaxis.range;
  const longest = Math.max(...(layout.yaxis.ticktext ?? [""]).map((text) => text.length));
  const left = l + 7 * longest;
  const width = box.clientWidth - left - r;
  const height = layout.height - t - b;
  const row = height / Math.abs(top - bottom);
  canvas.style.left = `${left + (width * (map.x[0] - low)) / (high - low)}px`;
  canvas.style.width = `${(width * (map.x.at(-1) - map.x[0])) / (high - low)}px`;
  canvas.style.top = `${t + row * (-0.5 - top)}px`;
  canvas.style.height = `${row * map.z.length}px`;
}
