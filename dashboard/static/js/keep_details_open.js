/* Keeps <details> with an id open when htmx replaces a part of the page. */

const OPEN = "details[open][id]";
const kept = new Map(); // id of the part -> ids of its open details

document.addEventListener("htmx:beforeSwap", ({ detail: { target } }) => {
  const found = [...target.querySelectorAll(OPEN), ...(target.matches(OPEN) ? [target] : [])];
  if (target.id && found.length) kept.set(target.id, found.map((one) => one.id));
});

document.addEventListener("htmx:afterSettle", ({ target: { id } }) => {
  for (const one of kept.get(id) ?? []) document.getElementById(one)?.setAttribute("open", "");
  kept.delete(id);
});
