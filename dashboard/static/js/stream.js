/* One multiplexed event stream a tab.
 *
 *   import { subscribe, onConnection } from "./stream.js";
 *   const stop = subscribe("run:12", (what) => { ... });   // what: ["points", "log"], or ["*"] = fetch everything
 *   onConnection((connected) => { ... });
 *
 * Topics: run:<id>, study:<id>, search:<id>, runs, fleet. When the stream has opened, at first or after a loss, every callback is
 * called once with ["*"], so that pages fetch what came between their rendering, or the loss, and now. The set of topics may change at any time; the stream then reopens and resumes
 * behind the last message, missing nothing.
 */

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15000;
const NOTE_AFTER_MS = 1000; // a connection that is back at once is not worth a word

const listeners = new Map(); // topic -> Set of callbacks
const watchers = new Set();
let source = null;
let lastId = "";
let delay = FIRST_DELAY_MS;
let timer = null;
let behind = true; // of what happened while no stream was open
let connected = null;
let signedOut = false;

/** Calls `callback(what)` on news of `topic`; returns a function that ends this. */
export function subscribe(topic, callback) {
  if (!listeners.has(topic)) {
    listeners.set(topic, new Set());
    schedule(0);
  }
  listeners.get(topic).add(callback);
  return () => {
    const group = listeners.get(topic);
    if (!group) return;
    group.delete(callback);
    if (group.size === 0) {
      listeners.delete(topic);
      schedule(0);
    }
  };
}

/** Calls `callback(connected)` now, if known, and at each change. */
export function onConnection(callback) {
  watchers.add(callback);
  if (connected !== null) callback(connected);
  return () => watchers.delete(callback);
}

function schedule(wait) {
  clearTimeout(timer);
  timer = setTimeout(open, wait);
}

function setConnected(value) {
  if (value === connected) return;
  connected = value;
  for (const watcher of watchers) watcher(value);
}

function tell(topic, what) {
  for (const callback of listeners.get(topic) ?? []) {
    try {
      callback(what);
    } catch (error) {
      console.error(error); // one broken part of a page must not silence the others
    }
  }
}

function close() {
  if (source) source.close();
  source = null;
}

function open() {
  close();
  if (listeners.size === 0 || signedOut || document.hidden) return;
  const query = new URLSearchParams({ topics: [...listeners.keys()].join(",") });
  if (lastId) query.set("last", lastId);
  const mine = new EventSource(`/live/stream?${query}`);
  source = mine;
  mine.addEventListener("hello", (event) => mine === source && opened(event));
  mine.addEventListener("message", (event) => mine === source && received(event));
  mine.addEventListener("bye", (event) => mine === source && ended(JSON.parse(event.data).why));
  mine.addEventListener("error", () => mine === source && lost());
}

function opened(event) {
  lastId = event.lastEventId;
  delay = FIRST_DELAY_MS;
  setConnected(true);
  if (behind) {
    behind = false;
    for (const topic of [...listeners.keys()]) tell(topic, ["*"]);
  }
}

function received(event) {
  if (event.lastEventId) lastId = event.lastEventId;
  const { topic, what } = JSON.parse(event.data);
  tell(topic, what);
}

function ended(why) {
  if (why === "signed-out") {
    signedOut = true;
    close();
    setConnected(false);
  } else {
    lost();
  }
}

function lost() {
  close();
  behind = true;
  setConnected(false);
  // Spread over time: a restarted server is not met by all tabs at once.
  schedule(delay * (0.5 + Math.random()));
  delay = Math.min(delay * 2, LONGEST_DELAY_MS);
}

/* While nothing arrives the page says so, so that an old number is not taken for the newest. */
const note = document.createElement("p");
note.className = "notice warning connection";
note.setAttribute("role", "status");
document.body.append(note);
let noteTimer = null;

function explain() {
  if (!signedOut) {
    note.textContent = "Live updates are interrupted; what you see may be old. Trying again.";
    return;
  }
  const link = document.createElement("a");
  link.href = `/accounts/login/?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in again";
  note.replaceChildren("You are signed out, so nothing here is live any more. ", link);
}

onConnection((up) => {
  clearTimeout(noteTimer);
  if (up) note.replaceChildren();
  else noteTimer = setTimeout(explain, NOTE_AFTER_MS);
});

window.addEventListener("online", () => {
  if (!connected && !signedOut) schedule(0);
});
// A network that is gone leaves the stream open and silent for minutes: the browser knows it sooner.
window.addEventListener("offline", () => {
  if (source) lost();
});
/* A tab that nobody sees holds no stream: a browser opens six connections to one host, and the seventh page would wait
   for ever. What it missed it fetches when it is looked at again. */
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    close();
    behind = true;
  } else {
    schedule(0);
  }
});
window.addEventListener("pagehide", close);
window.addEventListener("pageshow", (event) => {
  if (event.persisted) lost(); // back from the browser's page cache: the stream was closed
});
