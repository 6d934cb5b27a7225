/* Live updates of pages without scrolling, and small conveniences of forms.
 *
 * [data-live-topic="study:3"] on a page subscribes it. On news it fetches data-live-changes = URL, which answers with
 * parts and charts as lists of digests, and the texts that this page does not have yet. Every element [data-live] with
 * the id of a part takes its new content, with charts that it did not have, and pulses once if it changed.
 * data-live-reload = keys of data-src charts to fetch again when a run has begun or ended; with data-live-spans also
 * when a running one was traced. Parts that take long to make have addresses of their own, [data-live-src], from which
 * they are fetched at first, too. With data-settled, nothing has changed since the page was made.
 */

import "./copy_address.js";
import { justLoaded } from "./from_cache.js";
import { elementOf, morph } from "./morph.js";
import { check, get, isUrgent, Paced } from "./refetch.js";
import { subscribe } from "./stream.js";

const WAIT_MS = 1000; // least interval between fetches
const PART_MS = 10000; // the same of a part with its own address, which takes the server long to make
const page = document.querySelector("[data-live-topic]");
const MOST_NAMED = 600; // how many digests fit into a request's header
const changes = new Paced();
const parts = new Map(); // id of a part with its own address -> Paced
let settled = page !== null && "settled" in page.dataset && justLoaded();
let news = new Set();
let held = new Map(); // digest -> text, of the last answer
let shown = {}; // id of a part or key of a chart -> its digests

/* Without the blanks and line ends around it, which the page and an answer with parts write in different places. */
const words = (element) => element.textContent.trim();

async function put(element, fresh) {
  const before = words(element);
  morph(element, fresh, "innerHTML");
  if (element.querySelector(".chart[data-chart]")) (await import("./charts.js")).watch(element);
  if (words(element) === before) return;
  element.classList.remove("pulse");
  void element.offsetWidth; // restarts the animation
  element.classList.add("pulse");
}

/* Whether an answer can be shown: not if it is the sign-in. Throws if it is no success. */
function fit(answer) {
  check(answer);
  return !answer.redirected;
}

async function refreshPart(id) {
  const old = document.getElementById(id);
  const answer = await get(old.dataset.liveSrc);
  if (!fit(answer)) return;
  parts.get(id).paid(answer);
  const fresh = await elementOf(answer, id);
  if (fresh) morph(old, fresh);
}

/* The digests of the longest texts held: those that are most worth not being sent again. */
function longest(most) {
  if (held.size <= most) return [...held.keys()];
  const sorted = [...held].sort(([, one], [, other]) => other.length - one.length);
  return sorted.slice(0, most).map(([key]) => key);
}

async function refreshChanged() {
  const named = longest(MOST_NAMED).join(",");
  const answer = await get(page.dataset.liveChanges + location.search, { headers: { "X-Have": named } });
  if (answer.status === 404) location.reload(); // deleted: the page says so
  if (!fit(answer)) return;
  changes.paid(answer);
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
    await put(element, fresh);
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
  // After urgent news, the shown step of a run may be another one.
  if (!isUrgent(what) && !("liveSpans" in page.dataset && what.has("spans"))) return;
  if (!keys.length) return;
  const { reload } = await import("./charts.js");
  for (const key of keys) await reload(key);
}

async function refresh() {
  const what = news;
  news = new Set();
  try {
    await refreshChanged();
    await reloadDrawn(what);
  } catch (error) {
    what.forEach((one) => news.add(one)); // for the next attempt
    throw error;
  }
}

function follow(what) {
  if (settled && what.includes("*")) {
    settled = false;
    if (justLoaded()) return;
  }
  what.forEach((one) => news.add(one));
  changes.soon(refresh, WAIT_MS, isUrgent(news));
  // In a busy study some run begins or ends every moment, so for these parts only a new stream is urgent.
  const opened = what.includes("*");
  for (const [id, part] of parts) part.soon(() => refreshPart(id), opened ? 0 : PART_MS, opened);
}

for (const { id } of document.querySelectorAll("[data-live-src]")) {
  parts.set(id, new Paced());
  parts.get(id).soon(() => refreshPart(id), settled ? 0 : WAIT_MS, true); // at once when the stream opens
}
if (page) subscribe(page.dataset.liveTopic, follow);

/* Forms that are sent when a control changes. Not when it was changed by keys, as each arrow key chooses the next option
 * of a closed list: then the form's own button sends it. */
for (const form of document.querySelectorAll("form[data-auto-submit]")) {
  let keyed = false;
  form.addEventListener("keydown", () => (keyed = true));
  form.addEventListener("pointerdown", () => (keyed = false));
  form.addEventListener("change", () => keyed || form.requestSubmit());
}

/* Joins the ticked numbers into one parameter: ?show=1,2,3. */
for (const form of document.querySelectorAll("form[data-numbers]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const url = new URL(location.href);
    const ticked = [...form.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value);
    url.searchParams.set(form.dataset.numbers, ticked.join(","));
    url.hash = new URL(form.action).hash;
    if (url.href === location.href) location.reload();
    else location.assign(url);
  });
}
