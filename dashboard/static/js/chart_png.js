/* A picture of a chart: a click on [data-chart-png] saves it as PNG, with its finding and its source in it. */

import { whole } from "./chart_bars.js";

const SCALE = 2;
const HEAD = 64; // px for the finding and the quantity
const FOOT = 24; // px for the source

function words(figure, selector) {
  const span = document.createElement("span");
  span.textContent = figure.querySelector(selector)?.textContent.trim() ?? "";
  return span.innerHTML; // Plotly renders a subset of HTML: names stay text
}

function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function picture(figure, box) {
  const layout = structuredClone(box.layout);
  const note = (text, y, size, more) => ({
    text, x: 0, y, xref: "container", yref: "container", xanchor: "left", showarrow: false, font: { size }, ...more,
  });
  layout.paper_bgcolor = layout.plot_bgcolor = colour("--surface");
  layout.autosize = false;
  layout.width = Math.max(box.clientWidth, 640);
  layout.height = (box.layout.height ?? box.clientHeight) + HEAD + FOOT;
  layout.margin = { ...layout.margin, t: (layout.margin?.t ?? 0) + HEAD, b: (layout.margin?.b ?? 0) + FOOT };
  layout.title = {
    ...note(`<b>${words(figure, "figcaption")}</b><br><span style="font-size:12px">${words(figure, ":scope > .sub")}</span>`, 1, 15),
    x: 0.01, y: 1 - 12 / layout.height, yanchor: "top", xref: "container", font: { size: 15, color: colour("--ink") },
  };
  layout.annotations = [
    ...(layout.annotations ?? []),
    note(words(figure, ".chart-source"), 0, 11, { xref: "paper", yref: "paper", yanchor: "top", yshift: 8 - layout.margin.b + FOOT }),
  ];
  return { data: whole(box), layout };
}

async function save(button) {
  const figure = button.closest(".chart");
  const box = figure.querySelector(".chart-box");
  if (!window.Plotly || !box.data?.length) return;
  button.disabled = true;
  try {
    const { data, layout } = picture(figure, box);
    const address = await window.Plotly.toImage({ data, layout }, { format: "png", scale: SCALE, width: layout.width, height: layout.height });
    const link = document.createElement("a");
    link.href = address;
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
