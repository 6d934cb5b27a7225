/* Live fleet page: fetches its part again on news of the stream; heartbeat dots age in between. */

import { elementOf, morph } from "./morph.js";
import { subscribe } from "./stream.js";

const LATE_S = 4;
const SILENT_S = 6; // the lease: three missed heartbeats
const GAP_MS = 1000;
let fetchedAt = performance.now();
let timer = null;

function age() {
  const since = (performance.now() - fetchedAt) / 1000;
  for (const dot of document.querySelectorAll(".beat[data-age]")) {
    if (dot.dataset.age === "") continue;
    const seconds = Number(dot.dataset.age) + since;
    dot.dataset.level = seconds > SILENT_S ? "silent" : seconds > LATE_S ? "late" : "fresh";
  }
}

async function refresh() {
  timer = null;
  const old = document.getElementById("fleet");
  const answer = await fetch(old.dataset.url);
  if (!answer.ok) return;
  const fresh = await elementOf(answer, "fleet");
  if (!fresh) return;
  morph(old, fresh);
  fetchedAt = performance.now();
  age();
}

function soon() {
  timer ??= setTimeout(() => refresh().catch((error) => console.warn(error)), GAP_MS);
}

age();
setInterval(age, 1000);
subscribe("fleet", soon);
subscribe("runs", soon);
