/* Live updates of pages without scrolling, and small conveniences of forms.
 *
 * [data-live-topic="study:3"] on a page subscribes it. On news it fetches data-live-changes = URL, which answers with
 * parts and charts as lists of digests, and the texts that this page does not have yet. Every element [data-live] with
 * the id of a part takes its new content, and pulses once if it changed. data-live-reload = keys of data-src charts to
 * fetch again when a run has begun or ended; with data-live-spans also when a running one was traced.
 */

import "./copy_address.js";
import { morph } from "./morph.js";
import { subscribe } from "./stream.js";

const WAIT_MS = 1000; // least interval between fetches
const PRICE = 40; // while runs only progress, fetches are so rare that their answers take at most 1/40 of a core
const LONGEST_MS = 15000;
const URGENT = ["*", "state", "summary"]; // news after which the shown step of a run may also be another one
const page = document.querySelector("[data-live-topic]");
const MOST_NAMED = 600; // how many digests fit into a request's header
let timer = null;
let due = 0; // when the timer ends
let pace = WAIT_MS;
let running = false;
let again = false;
let news = new Set();
let held = new Map(); // digest -> text, of the last answer
let shown = {}; // id of a part or key of a chart -> its digests

function put(element, fresh) {
  const before = element.textContent;
  morph(element, fresh, "innerHTML");
  if (element.textContent === before) return;
  element.classList.remove("pulse");
  void element.offsetWidth; // restarts the animation
  element.classList.add("pulse");
}

async function refreshChanged() {
  const named = held.size <= MOST_NAMED ? [...held.keys()].join(",") : "";
  const answer = await fetch(page.dataset.liveChanges + location.search, { headers: { "X-Have": named } });
  if (answer.status === 404) location.reload(); // deleted: the page says so
  if (!answer.ok || answer.redirected) return;
  pace = Math.min(LONGEST_MS, Math.max(WAIT_MS, PRICE * Number(answer.headers.get("X-Cost-Ms"))));
  const { parts, charts, texts } = await answer.json();
  const text = (digest) => texts[digest] ?? held.get(digest);
  const next = new Map();
  const made = {};
  for (const [id, digests] of Object.entries(parts)) {
    digests.forEach((digest) => next.set(digest, text(digest)));
    const element = document.getElementById(id);
    made[id] = digests.join();
    if (!element || made[id] === shown[id]) continue;
    const fresh = element.cloneNode(false);
    fresh.innerHTML = digests.map(text).join("");
    put(element, fresh);
  }
  const drawn = {};
  for (const [key, digests] of Object.entries(charts)) {
    digests.forEach((digest) => next.set(digest, text(digest)));
    made[`chart ${key}`] = digests.join();
    if (made[`chart ${key}`] !== shown[`chart ${key}`]) drawn[key] = JSON.parse(digests.map(text).join(""));
  }
  if (Object.keys(drawn).length) await (await import("./charts.js")).update(drawn);
  [held, shown] = [next, made];
}

async function reloadDrawn(what) {
  const keys = (page.dataset.liveReload || "").split(",").filter(Boolean);
  const news = "liveSpans" in page.dataset ? [...URGENT, "spans"] : URGENT;
  if (!keys.length || !news.some((one) => what.has(one))) return;
  const { reload } = await import("./charts.js");
  for (const key of keys) await reload(key);
}

async function refresh() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  const what = news;
  news = new Set();
  try {
    await refreshChanged();
    await reloadDrawn(what);
  } catch {
    // The stream calls again on the next news or connection.
  } finally {
    running = false;
    if (again) {
      again = false;
      schedule();
    }
  }
}

function schedule() {
  const wait = URGENT.some((one) => news.has(one)) ? WAIT_MS : pace;
  if (timer !== null && due <= performance.now() + wait) return;
  clearTimeout(timer);
  due = performance.now() + wait;
  timer = setTimeout(() => {
    timer = null;
    refresh();
  }, wait);
}

if (page) {
  subscribe(page.dataset.liveTopic, (what) => {
    what.forEach((one) => news.add(one));
    schedule();
  });
}

/* Forms that are sent when a control changes; their button is for browsers without this file. */
for (const form of document.querySelectorAll("form[data-auto-submit]")) {
  form.querySelector("[data-auto-submit-button]")?.setAttribute("hidden", "");
  form.addEventListener("change", () => form.requestSubmit());
}

/* Joins the ticked numbers into one parameter: ?show=1,2,3. */
for (const form of document.querySelectorAll("form[data-numbers]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const url = new URL(location.href);
    const ticked = [...form.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value);
    url.searchParams.set(form.dataset.numbers, ticked.join(","));
    url.hash = new URL(form.action).hash;
    location.assign(url);
    if (url.hash === location.hash) location.reload();
  });
}
