/* What the reader laid open stays open where htmx replaces a part of the page by a newer one: <details> with an id. */

const OPEN = "details[open][id]";
const kept = new Map(); // by the id of the part

document.addEventListener("htmx:beforeSwap", ({ detail: { target } }) => {
  const found = [...target.querySelectorAll(OPEN), ...(target.matches(OPEN) ? [target] : [])];
  if (target.id && found.length) kept.set(target.id, found.map((one) => one.id));
});

document.addEventListener("htmx:afterSettle", ({ target: { id } }) => {
  for (const one of kept.get(id) ?? []) document.getElementById(one)?.setAttribute("open", "");
  kept.delete(id);
});
