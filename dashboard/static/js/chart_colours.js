/* Colours of figures: replaces each "var(--name)" by the computed colour of the theme. */

function resolver() {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.forcedColorAdjust = "none"; // in a contrast theme every colour would be that of its text
  document.body.append(probe);
  const known = new Map();
  return {
    get(name) {
      if (!known.has(name)) {
        const raw = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
        probe.style.color = "";
        probe.style.color = `var(${name})`;
        known.set(name, name === "--sans" ? raw : getComputedStyle(probe).color);
      }
      return known.get(name);
    },
    done: () => probe.remove(),
  };
}

function replaced(value, colours) {
  if (typeof value === "string") {
    const match = /^var\((--[\w-]+)\)$/.exec(value);
    return match ? colours.get(match[1]) : value;
  }
  if (Array.isArray(value)) return value.map((item) => replaced(item, colours));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, replaced(item, colours)]));
  }
  return value;
}

/* A copy of a figure, or of a part of one, in the current colours. */
export function painted(value) {
  const colours = resolver();
  const copy = replaced(value, colours);
  colours.done();
  return copy;
}
