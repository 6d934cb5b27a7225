// The runs list: updates rows live, in place. Rows never move by themselves: if rows would be added, removed or
// reordered, a line above the table offers the new list.
import { morph } from "./morph.js";
import { check, get, isUrgent, Paced } from "./refetch.js";
import { subscribe } from "./stream.js";

const results = document.querySelector("#results");
const changed = document.querySelector("#list-changed");
const filters = document.querySelector("#filters");
const GAP_MS = 250; // least interval between fetches
const list = new Paced();
let replacing = false; // whether the next answer becomes the list as a whole, as the user asked

const rowsOf = (root) => [...root.querySelectorAll("tr[data-run]")];
const orderOf = (root) => rowsOf(root).map((row) => row.dataset.run).join(",");

async function fetchPart(address) {
  const answer = await get(address, { headers: { "HX-Request": "true" }, credentials: "same-origin" });
  check(answer);
  list.paid(answer);
  if (answer.redirected) return null;
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function patch(row, fresh) {
  let news = false;
  [...row.cells].forEach((cell, i) => {
    const next = fresh.cells[i];
    if (i === 0 || cell.innerHTML === next.innerHTML) return; // the first cell has the user's checkbox
    morph(cell, next, "innerHTML");
    cell.toggleAttribute("data-none", next.hasAttribute("data-none"));
    news ||= cell.dataset.title !== "Age";
  });
  if (!news) return;
  row.classList.remove("pulse");
  requestAnimationFrame(() => row.classList.add("pulse"));
}

// The new list lacks this run, so nothing more is heard of it: its row must not go on to say that it runs.
function gone(row) {
  const state = row.querySelector('[data-title="State"]');
  if (state.querySelector("[data-gone]")) return;
  const said = document.createElement("span");
  said.className = "sub small";
  said.dataset.gone = "";
  said.textContent = "not in the new list";
  state.replaceChildren(said);
}

const columnsOf = (root) => [...root.querySelectorAll("th .sort")].map((link) => link.id).join(",");

function apply(part) {
  if (!rowsOf(results).length) { // without a table there are no columns to compare
    if (rowsOf(part).length) replace(part);
    return;
  }
  const fresh = new Map(rowsOf(part).map((row) => [row.dataset.run, row]));
  for (const row of rowsOf(results)) if (!fresh.has(row.dataset.run)) gone(row);
  if (columnsOf(part) !== columnsOf(results)) {
    // A run got its first value of a column that is shown only where there is one: cells would not fit their columns.
    if (orderOf(part) === orderOf(results)) replace(part);
    else changed.hidden = false;
    return;
  }
  for (const row of rowsOf(results)) if (fresh.has(row.dataset.run)) patch(row, fresh.get(row.dataset.run));
  if (orderOf(part) !== orderOf(results)) changed.hidden = false;
}

function replace(part) {
  const focused = document.activeElement;
  const ticked = new Set([...results.querySelectorAll("input[name=runs]:checked")].map((box) => box.value));
  results.replaceChildren(...part.body.childNodes);
  for (const box of results.querySelectorAll("input[name=runs]")) box.checked = ticked.has(box.value);
  window.htmx?.process(results);
  count();
  // The button or element with the focus is gone: moves the focus to the new list.
  if (changed.contains(focused) || !focused.isConnected) {
    (results.querySelector(".table-scroll") ?? results).focus({ preventScroll: true });
  }
  changed.hidden = true;
}

async function refresh() {
  const asked = location.href;
  const use = replacing ? replace : apply;
  const part = await fetchPart(asked);
  // Filtered or sorted in the meantime: the answer is for another list, so the request is repeated.
  if (location.href !== asked) {
    list.soon(refresh, GAP_MS, true);
    return;
  }
  if (use === replace) replacing = false;
  if (part) use(part);
}

function count() {
  const boxes = results.querySelectorAll("input[name=runs]").length;
  const ticked = results.querySelectorAll("input[name=runs]:checked").length;
  const cancel = results.querySelector("[data-cancel]");
  if (cancel) {
    cancel.textContent = ticked ? `Cancel ${ticked} selected…` : "Cancel selected…";
    cancel.disabled = !ticked;
  }
  const all = results.querySelector("[data-all]");
  if (all) {
    all.hidden = false;
    all.checked = boxes > 0 && ticked === boxes;
    all.indeterminate = ticked > 0 && ticked < boxes;
  }
  const button = results.querySelector("[data-compare]");
  if (!button) return;
  button.textContent = ticked ? `Compare ${ticked} selected` : "Compare selected";
  button.disabled = ticked < 2;
  const away = results.querySelector("[data-delete]");
  if (away) away.disabled = !ticked;
}

results.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) {
    for (const box of results.querySelectorAll("input[name=runs]")) box.checked = event.target.checked;
  }
  count();
});
changed.querySelector("button").addEventListener("click", () => {
  replacing = true;
  list.soon(refresh, 0, true);
});
results.addEventListener("htmx:afterSwap", () => {
  replacing = false;
  changed.hidden = true;
});
document.body.addEventListener("htmx:afterSettle", count);
count();
subscribe("runs", (what) => list.soon(refresh, GAP_MS, isUrgent(what)));

// On a phone all filters but the search are folded away (CSS), unless one of them is in use.
const more = filters.querySelector(".more-filters");
more.addEventListener("click", () => more.setAttribute("aria-expanded", String(filters.toggleAttribute("data-open"))));
