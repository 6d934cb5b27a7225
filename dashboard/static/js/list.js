// The runs list: rows follow the runs live, in place. Nothing moves under the reader: where rows would come, go or
// change places, a line above the table offers the new list instead.
import { morph } from "./morph.js";
import { subscribe } from "./stream.js";

const results = document.querySelector("#results");
const changed = document.querySelector("#list-changed");
let busy = false;
let pending = null; // what to do with another answer, asked for while one is on its way

const rowsOf = (root) => [...root.querySelectorAll("tr[data-run]")];
const orderOf = (root) => rowsOf(root).map((row) => row.dataset.run).join(",");

async function fetchPart(address) {
  const answer = await fetch(address, { headers: { "HX-Request": "true" }, credentials: "same-origin" });
  if (!answer.ok || answer.redirected) return null;
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function patch(row, fresh) {
  let news = false;
  [...row.cells].forEach((cell, i) => {
    const next = fresh.cells[i];
    if (i === 0 || cell.innerHTML === next.innerHTML) return; // the first cell is the reader's own tick
    morph(cell, next, "innerHTML");
    news ||= cell.dataset.title !== "Age";
  });
  if (!news) return;
  row.classList.remove("pulse");
  requestAnimationFrame(() => row.classList.add("pulse"));
}

function apply(part) {
  const fresh = new Map(rowsOf(part).map((row) => [row.dataset.run, row]));
  for (const row of rowsOf(results)) if (fresh.has(row.dataset.run)) patch(row, fresh.get(row.dataset.run));
  if (orderOf(part) === orderOf(results)) return;
  if (!rowsOf(results).length) return replace(part);
  changed.hidden = false;
}

function replace(part) {
  const focused = document.activeElement;
  const ticked = new Set([...results.querySelectorAll("input[name=runs]:checked")].map((box) => box.value));
  results.replaceChildren(...part.body.childNodes);
  for (const box of results.querySelectorAll("input[name=runs]")) box.checked = ticked.has(box.value);
  window.htmx?.process(results);
  count();
  // The button, or what had the focus in the old list, is gone: the keyboard goes on in the new one.
  if (changed.contains(focused) || !focused.isConnected) {
    (results.querySelector(".table-scroll") ?? results).focus({ preventScroll: true });
  }
  changed.hidden = true;
}

async function refresh(use = apply) {
  if (busy) {
    if (pending !== replace) pending = use; // whoever asked for the new list gets it, whatever is asked for behind that
    return;
  }
  busy = true;
  try {
    const asked = location.href;
    const part = await fetchPart(asked);
    // Filtered or sorted meanwhile: the answer is of another list, and what it was to tell is asked for again.
    if (location.href !== asked) pending ??= apply;
    else if (part) use(part);
  } catch {
    // The stream says when the server is back; the next message asks again.
  } finally {
    busy = false;
    if (pending) {
      setTimeout(refresh, 250, pending);
      pending = null;
    }
  }
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
changed.querySelector("button").addEventListener("click", () => refresh(replace));
results.addEventListener("htmx:afterSwap", () => {
  changed.hidden = true;
});
document.body.addEventListener("htmx:afterSettle", count);
count();
subscribe("runs", () => refresh());
