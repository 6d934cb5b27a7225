/* Live pages without moving the reader, and small conveniences of forms.
 *
 * [data-live-topic="study:3"] on a page subscribes it. On news the page's own address is fetched again and every
 * element [data-live] with an id takes its new content, with one pulse where it changed. data-live-charts = URL of
 * {key: chart} for charts that stand in the page; data-live-reload = keys of data-src charts to fetch again.
 */

import { morph } from "./morph.js";
import { subscribe } from "./stream.js";

const WAIT_MS = 1000; // a page is fetched at most this often, however often there is news
const page = document.querySelector("[data-live-topic]");
let timer = null;
let running = false;
let again = false;

async function refreshWords() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const element of document.querySelectorAll("[data-live][id]")) {
    const news = fresh.getElementById(element.id);
    if (!news) continue;
    const before = element.textContent;
    morph(element, news, "innerHTML");
    if (element.textContent === before) continue;
    element.classList.remove("pulse");
    void element.offsetWidth; // restarts the animation
    element.classList.add("pulse");
  }
}

async function refreshCharts() {
  if (!page.dataset.liveCharts) return;
  const { update, reload } = await import("./charts.js");
  const answer = await fetch(page.dataset.liveCharts + location.search, { headers: { Accept: "application/json" } });
  if (answer.ok) await update(await answer.json());
  for (const key of (page.dataset.liveReload || "").split(",").filter(Boolean)) await reload(key);
}

async function refresh() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  try {
    await refreshWords();
    await refreshCharts();
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

if (page) subscribe(page.dataset.liveTopic, schedule);

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
