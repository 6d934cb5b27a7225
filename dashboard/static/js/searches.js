/* Searches that the analyst works on: [data-search="12"] is in place of the answer, and its hx-get is the address of
 * the part of the page with the answer. On news the part is fetched: it updates the progress or, when there is an
 * answer, replaces the element. Without this file a reload shows the progress. */

import { morph } from "./morph.js";
import { get } from "./refetch.js";
import { subscribe } from "./stream.js";

const ANYWAY_MS = 5000; // also fetched at this interval, as the broker can lose news, but the database no answer
const followed = new Map(); // number -> function that ends its subscription

async function look(number) {
  const box = document.querySelector(`[data-search="${number}"]`);
  if (!box) return;
  const answer = await get(box.getAttribute("hx-get"), { headers: { "HX-Request": "true" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector(`[data-search="${number}"]`);
  if (!box.isConnected) return;
  if (fresh) morph(box, fresh);
  else box.dispatchEvent(new Event("news")); // makes htmx replace the element by the answer, with its charts
}

function follow() {
  const shown = new Set([...document.querySelectorAll("[data-search]")].map((box) => box.dataset.search));
  for (const [number, end] of followed) {
    if (shown.has(number)) continue;
    followed.delete(number);
    end();
  }
  for (const number of shown) {
    if (followed.has(number)) continue;
    const news = () => look(number).catch((error) => console.warn(error));
    followed.set(number, subscribe(`search:${number}`, news));
  }
}

follow();
document.addEventListener("htmx:afterSettle", follow);
setInterval(() => {
  for (const number of followed.keys()) look(number).catch((error) => console.warn(error));
}, ANYWAY_MS);
