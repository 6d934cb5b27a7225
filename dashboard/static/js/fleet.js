/* Live fleet page: fetches its part again on news of the stream; heartbeat dots age in between. */

import { elementOf, morph } from "./morph.js";
import { check, get, isUrgent, Paced } from "./refetch.js";
import { subscribe } from "./stream.js";

const LATE_S = 4;
const SILENT_S = 6; // the lease: three missed heartbeats
const HELD_S = 20; // longer than a fetch of news is ever put off
const QUIET_S = 12; // longer than the controller may be silent (fleet/listening.py): nobody else announces that it is away
const GAP_MS = 1000; // least interval between fetches
let fetchedAt = performance.now();
let askedAt = fetchedAt;
let behind = false; // whether there was news since the last fetch began
const part = new Paced();

const sinceFetch = () => (performance.now() - fetchedAt) / 1000;

function age() {
  const since = sinceFetch();
  for (const dot of document.querySelectorAll(".beat[data-age]")) {
    if (dot.dataset.age === "") continue;
    const seconds = Number(dot.dataset.age) + since;
    dot.dataset.level = seconds > SILENT_S ? "silent" : seconds > LATE_S ? "late" : "fresh";
  }
}

async function refresh() {
  const old = document.getElementById("fleet");
  behind = false;
  askedAt = performance.now();
  const answer = await get(old.dataset.url);
  check(answer);
  part.paid(answer);
  if (answer.redirected) return; // the sign-in
  const fresh = await elementOf(answer, "fleet");
  if (!fresh) return;
  morph(old, fresh);
  fetchedAt = performance.now();
  age();
}

function follow(what) {
  behind = true;
  part.soon(refresh, GAP_MS, isUrgent(what));
}

age();
setInterval(() => {
  // News that waits to be fetched may be that a host has spoken.
  if (!behind || sinceFetch() >= HELD_S) age();
  if (performance.now() - askedAt >= QUIET_S * 1000) follow([]);
}, 1000);
subscribe("fleet", follow);
subscribe("runs", follow);
