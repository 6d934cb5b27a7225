/* Paints lanes of bars that are elements of the page, as it shows them: their fills, edges, hatching and texts. */

const HATCH = 4; // px from line to line

/* The colour of a variable of the stylesheet. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

export function within(context, rect, inside) {
  context.save();
  context.beginPath();
  context.rect(rect.x, rect.y, rect.width, rect.height);
  context.clip();
  inside();
  context.restore();
}

function fill(context, rect, style) {
  context.fillStyle = style.backgroundColor;
  context.fillRect(rect.x, rect.y, rect.width, rect.height);
  const edge = parseFloat(style.borderTopWidth);
  if (!edge) return;
  context.lineWidth = edge;
  context.strokeStyle = style.borderTopColor;
  context.setLineDash(style.borderTopStyle === "dashed" ? [3 * edge, 2 * edge] : []);
  context.strokeRect(rect.x + edge / 2, rect.y + edge / 2, rect.width - edge, rect.height - edge);
}

export function hatch(context, rect) {
  context.fillStyle = colour("--phase-idle");
  context.fillRect(rect.x, rect.y, rect.width, rect.height);
  context.strokeStyle = colour("--phase-idle-line");
  context.lineWidth = 1;
  context.setLineDash([]);
  context.beginPath();
  for (let x = rect.x - rect.height; x < rect.x + rect.width; x += HATCH) {
    context.moveTo(x, rect.y + rect.height);
    context.lineTo(x + rect.height, rect.y);
  }
  context.stroke();
}

function write(context, rect, element) {
  const style = getComputedStyle(element);
  context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  context.fillStyle = style.color;
  context.textBaseline = "middle";
  const text = element.textContent.trim().replace(/\s+/g, " ");
  within(context, rect, () => context.fillText(text, rect.x, rect.y + rect.height / 2));
}

export function paint(context, lanes, left, top) {
  const zero = lanes.getBoundingClientRect();
  const placed = (element) => {
    const rect = element.getBoundingClientRect();
    return new DOMRect(rect.x - zero.x + left, rect.y - zero.y + top, rect.width, rect.height);
  };
  for (const element of lanes.querySelectorAll(".lane-name, .lane-bars, .bar, .lane-ticks span")) {
    const rect = placed(element);
    if (!rect.width) continue;
    if (element.matches(".lane-name, .lane-ticks span")) write(context, rect, element);
    else if (element.matches(".lane-bars")) fill(context, rect, getComputedStyle(element));
    else {
      within(context, placed(element.parentElement), () => {
        fill(context, rect, getComputedStyle(element));
        const [held, name] = [".held", ":scope > span"].map((part) => element.querySelector(part));
        within(context, rect, () => {
          if (held) within(context, placed(held), () => hatch(context, placed(held)));
          if (name.getClientRects().length) write(context, placed(name), name);
        });
      });
    }
  }
}
