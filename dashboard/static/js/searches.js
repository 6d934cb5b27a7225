/* Searches that the analyst works on: [data-search="12"] stands where the answer will be and names in hx-get the part
 * of the page that has it. On news the part is fetched; while it still waits what changed is taken over, else the
 * answer takes its place. Without this file a reload shows how far it is. */

import { morph } from "./morph.js";
import { subscribe } from "./stream.js";

const ANYWAY_MS = 5000; // news can be lost with the broker; an answer cannot
const followed = new Map(); // number -> ends its subscription

async function look(number) {
  const box = document.querySelector(`[data-search="${number}"]`);
  if (!box) return;
  const answer = await fetch(box.getAttribute("hx-get"), { headers: { "HX-Request": "true" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector(`[data-search="${number}"]`);
  if (!box.isConnected) return;
  if (fresh) morph(box, fresh);
  else box.dispatchEvent(new Event("news")); // htmx puts the answer in its place, with its charts
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
