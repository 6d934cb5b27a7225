/* Live pages without moving the reader, and small conveniences of forms.
 *
 * [data-live-topic="study:3"] on a page subscribes it. On news the page's own address is fetched again and every
 * element [data-live] with an id takes its new content, with one pulse where it changed. data-live-charts = URL of
 * {key: chart} for charts that stand in the page; data-live-reload = keys of data-src charts to fetch again.
 * data-live-changes = URL that answers with parts and charts, in place of both: pieces of text by digest, of which
 * only those come that this page does not have yet.
 */

import { morph } from "./morph.js";
import { subscribe } from "./stream.js";

const WAIT_MS = 1000; // a page is fetched at most this often, however often there is news
const page = document.querySelector("[data-live-topic]");
const OF_SPANS = ["*", "spans", "state", "summary"]; // news after which a drawn step may be another
const MOST_NAMED = 600; // digests that fit into a request's header
let timer = null;
let running = false;
let again = false;
let news = new Set();
let held = new Map(); // digest -> text, of what the last answer was made of
let shown = {}; // id of a part, key of a chart -> what it was made of

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
  for (const [key, digest] of Object.entries(charts)) {
    next.set(digest, "");
    made[`chart ${key}`] = digest;
    if (digest !== shown[`chart ${key}`]) drawn[key] = JSON.parse(text(digest));
  }
  if (Object.keys(drawn).length) await (await import("./charts.js")).update(drawn);
  [held, shown] = [next, made];
}

async function refreshWords() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const element of document.querySelectorAll("[data-live][id]")) {
    const newer = fresh.getElementById(element.id);
    if (newer) put(element, newer);
  }
}

async function refreshCharts() {
  if (!page.dataset.liveCharts) return;
  const { update } = await import("./charts.js");
  const answer = await fetch(page.dataset.liveCharts + location.search, { headers: { Accept: "application/json" } });
  if (answer.ok) await update(await answer.json());
}

async function reloadDrawn(what) {
  const keys = (page.dataset.liveReload || "").split(",").filter(Boolean);
  if (!keys.length || !OF_SPANS.some((one) => what.has(one))) return;
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
    if (page.dataset.liveChanges) {
      await refreshChanged();
    } else {
      await refreshWords();
      await refreshCharts();
    }
    await reloadDrawn(what);
  } catch {
    // The stream calls again after the next news or the next connection.
  } finally {
    running = false;
    if (again) {
      again = false;
      schedule();
    }
  }
}

function schedule() {
  timer ??= setTimeout(() => {
    timer = null;
    refresh();
  }, WAIT_MS);
}

if (page) {
  subscribe(page.dataset.liveTopic, (what) => {
    what.forEach((one) => news.add(one));
    schedule();
  });
}

/* Forms whose controls apply at once; the button stays for browsers without this file. */
for (const form of document.querySelectorAll("form[data-auto-submit]")) {
  form.querySelector("[data-auto-submit-button]")?.setAttribute("hidden", "");
  form.addEventListener("change", () => form.requestSubmit());
}

/* Ticked numbers become one parameter: ?show=1,2,3. */
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

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy-address]");
  if (!button) return;
  await navigator.clipboard.writeText(location.href);
  button.textContent = "Address copied";
});
