/* What if: each field with [data-slider] gets a slider next to it, and the answer is updated while either is changed.
 *
 *   <select data-slider>                 the slider steps through its options
 *   <input data-slider="0.25 16">        a factor between these two, on a logarithmic scale; empty means 1
 *
 * The answer is morphed: its chart stays the same element and gets the new bars. The address has the form's values.
 * Without this file the form is sent like any other.
 */

import { watch } from "./charts.js";
import { elementOf, morph } from "./morph.js";
import { get } from "./refetch.js";
import { LEFT, unanswered } from "./unanswered.js";

const WAIT_MS = 150;
const STEPS = 4; // steps of a factor's slider from a number to its double
const FORM = "form[data-whatif]";
const PART = { Accept: "text/html", "HX-Request": "true" }; // not a page of its own
let timer = null;
let asked = null;

const factor = (field) => {
  const value = Number(field.value || 1);
  return value > 0 ? value : 1;
};

function place(range, field) {
  const select = field.matches("select");
  range.value = select ? field.selectedIndex : Math.log2(factor(field));
  const words = select ? field.selectedOptions[0]?.text : `${factor(field)} times as fast`;
  range.setAttribute("aria-valuetext", words ?? "");
}

function dress(field) {
  if (document.getElementById(`${field.id}-slider`)) return;
  const range = document.createElement("input");
  const [low, high] = field.matches("select") ? [0, field.options.length - 1] : field.dataset.slider.split(" ").map(Number).map(Math.log2);
  Object.assign(range, { type: "range", id: `${field.id}-slider`, min: low, max: high, step: field.matches("select") ? 1 : 1 / STEPS });
  range.dataset.slides = field.id;
  range.setAttribute("aria-label", `${field.labels[0]?.textContent ?? field.name}, slider`);
  field.after(range);
  place(range, field);
}

const dressAll = () => document.querySelectorAll(`${FORM} [data-slider]`).forEach(dress);

function move(range) {
  const field = document.getElementById(range.dataset.slides);
  if (field.matches("select")) field.selectedIndex = range.value;
  else field.value = Number(range.value) === 0 ? "" : String(Number((2 ** range.value).toPrecision(2)));
  place(range, field);
}

/* The page's address with the form's current values, without empty fields. */
function query(form) {
  const all = new URLSearchParams(location.search);
  for (const { name } of form.elements) if (name) all.delete(name);
  for (const [name, value] of new FormData(form)) if (value !== "") all.set(name, value);
  return all;
}

async function answer(form) {
  asked?.abort();
  asked = new AbortController();
  const all = query(form);
  history.replaceState(history.state, "", `${location.pathname}?${all}${location.hash}`);
  const old = document.getElementById("whatif-result");
  old.setAttribute("aria-busy", "true");
  try {
    const got = await get(`${form.dataset.whatif}?${all}`, { headers: PART, signal: asked.signal });
    if (got.status === 404) return location.reload(); // deleted: the page says so
    const fresh = await elementOf(got, "whatif-result");
    if (!fresh) throw new Error(`what if: ${got.status}`);
    morph(old, fresh);
    watch(old);
  } catch (error) {
    if (error.name === "AbortError") return; // a newer request has been sent
    console.warn(error);
    old.removeAttribute("aria-busy");
    const why = "the yard could not be reached, or you are signed out";
    unanswered(old, `This change got no answer: ${why}. ${LEFT}`, () => answer(form));
  }
}

document.addEventListener("input", ({ target }) => {
  const form = target.closest(FORM);
  if (!form) return;
  if (target.dataset.slides) move(target);
  const slider = document.getElementById(`${target.id}-slider`);
  if (slider) place(slider, target);
  clearTimeout(timer);
  timer = setTimeout(() => answer(form), WAIT_MS);
});

document.addEventListener("submit", (event) => {
  if (!event.target.matches(FORM)) return;
  event.preventDefault();
  clearTimeout(timer);
  answer(event.target);
});

/* Scrolls to a part that the address names but that loaded after its page, when the browser kept what is below it. */
const led = location.hash.slice(1);
function lead({ target }) {
  if (led && target.id === led) target.scrollIntoView();
}

document.body.addEventListener("htmx:afterSettle", dressAll);
document.body.addEventListener("htmx:afterSettle", lead);
dressAll();
