/* News from the server, through one event stream that the tabs of a browser share (stream_share.js).
 *
 *   import { subscribe, onConnection } from "./stream.js";
 *   const stop = subscribe("run:12", (what) => { ... });   // what: ["points", "log"], or ["*"] = fetch everything
 *   onConnection((connected) => { ... });
 *
 * Topics: run:<id>, study:<id>, search:<id>, runs, fleet. Whenever the stream opens (for the first time, after a loss,
 * or in another tab), every callback is called once with ["*"], so that pages fetch what has changed since they were
 * rendered or the stream was lost. The set of topics may change at any time; the stream then reopens and resumes after
 * the last message, missing nothing.
 */

import { stay } from "./stay.js";
import { Share } from "./stream_share.js";

const NOTE_AFTER_MS = 1000; // shorter losses of the connection are not shown

const listeners = new Map(); // topic -> Set of callbacks
const watchers = new Set();
const share = new Share({ moved, opened, news: ({ topic, what }) => tell(topic, what), lost, signedOut: ended });
let behind = true; // whether changes may have been missed while no stream was open
let connected = null;
let signedOut = false;

/** Calls `callback(what)` on news of `topic`; returns a function that ends this. */
export function subscribe(topic, callback) {
  if (!listeners.has(topic)) {
    listeners.set(topic, new Set());
    settle();
  }
  listeners.get(topic).add(callback);
  return () => {
    const group = listeners.get(topic);
    if (!group) return;
    group.delete(callback);
    if (group.size === 0) {
      listeners.delete(topic);
      settle();
    }
  };
}

/** Calls `callback(connected)` now, if known, and at each change. */
export function onConnection(callback) {
  watchers.add(callback);
  if (connected !== null) callback(connected);
  return () => watchers.delete(callback);
}

/* A hidden tab asks for no news; it fetches what it missed when it is visible again. */
function settle(seen = !document.hidden) {
  if (!seen) behind = true;
  share.want(seen && !signedOut ? [...listeners.keys()] : []);
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
      console.error(error); // an error in one callback must not stop the others
    }
  }
}

function moved() {
  behind = true;
}

function opened(topics) {
  const mine = [...listeners.keys()];
  if (!mine.every((topic) => topics.includes(topic))) return; // the stream will reopen with the topics of this tab
  setConnected(true);
  if (!behind) return;
  behind = false;
  for (const topic of mine) tell(topic, ["*"]);
}

function lost() {
  behind = true;
  setConnected(false);
}

function ended() {
  signedOut = true;
  setConnected(false);
  clearTimeout(noteTimer);
  explain(); // also replaces the note of a lost stream
  settle();
}

/* Shows on the page that nothing arrives, so that old numbers are not taken for current ones. */
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

const linger = stay((words) => {
  if (connected || signedOut) return;
  clearTimeout(noteTimer);
  note.textContent = words;
});

onConnection((up) => {
  clearTimeout(noteTimer);
  linger(!up && !signedOut);
  if (up) note.replaceChildren();
  else noteTimer = setTimeout(explain, NOTE_AFTER_MS);
});

window.addEventListener("online", () => share.online());
window.addEventListener("offline", () => share.offline());
document.addEventListener("visibilitychange", () => settle());
window.addEventListener("pagehide", () => settle(false));
window.addEventListener("pageshow", (event) => {
  if (event.persisted) settle(); // restored from the browser's page cache
});
