/* Says in a part of the page that what was asked for last got no answer, so that an old answer is not taken for one to
 * the new values.
 *
 *   unanswered(part, words, again);   // a note at the top of the part; its button calls again()
 *   unanswered(part, words, again, true);   // nothing has stood there yet but that it is under way: the note hides that
 *   answered(part);                   // removes the note, which an answer usually replaces
 *
 * Loaded by every page: it does so for the requests of htmx, and marks their targets as busy while they are under way.
 */

import { asksByTheClock } from "./session.js";

const NOTE = ":scope > [data-unanswered]";
const busy = new WeakMap(); // target -> its latest request

export const LEFT = "Below stands the answer before.";

export function unanswered(part, words, again, first = false) {
  answered(part);
  const note = document.createElement("p");
  const button = document.createElement("button");
  note.dataset.unanswered = first ? "first" : "";
  note.className = "notice warning";
  note.setAttribute("role", "alert");
  Object.assign(button, { type: "button", className: "button small", textContent: "Try again" });
  button.addEventListener("click", () => {
    if (part.getAttribute("aria-busy") === "true") return;
    button.textContent = "Trying again…";
    again();
  });
  note.append(`${words} `, button);
  part.prepend(note);
}

export function answered(part) {
  part.querySelector(NOTE)?.remove();
}

function release({ target, xhr }) {
  if (busy.get(target) !== xhr) return; // a newer one is under way
  busy.delete(target);
  target.removeAttribute("aria-busy");
}

/* Sends the request of an element again, with the values that its form has now. */
function repeat({ elt, target, requestConfig: { verb } }) {
  const path = elt.getAttribute(`hx-${verb}`);
  if (path === null || !elt.isConnected) return location.reload();
  return window.htmx.ajax(verb, path, { source: elt, target }).catch(() => {}); // told by an event
}

function fail(detail, why) {
  const { elt, target } = detail;
  if (asksByTheClock(elt) || !target.isConnected) return;
  const first = elt === target && /\b(load|revealed|intersect)\b/.test(elt.getAttribute("hx-trigger") ?? "");
  const words = elt.matches("form") ? `This change got no answer: ${why}. ${LEFT}` : `No answer came: ${why}.`;
  const focused = target.querySelector(NOTE)?.contains(document.activeElement);
  unanswered(target, words, () => repeat(detail), first);
  if (focused) target.querySelector(`${NOTE} button`).focus();
}

document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.defaultPrevented) return;
  const { target, xhr } = event.detail;
  busy.set(target, xhr);
  target.setAttribute("aria-busy", "true");
});
document.addEventListener("htmx:afterRequest", ({ detail }) => {
  release(detail);
  if (detail.successful) answered(detail.target);
});
document.addEventListener("htmx:sendError", ({ detail }) => fail(detail, "the yard could not be reached"));
document.addEventListener("htmx:timeout", ({ detail }) => fail(detail, "the yard took too long"));
document.addEventListener("htmx:responseError", ({ detail }) => {
  const { status } = detail.xhr;
  fail(detail, status === 401 ? "you are signed out" : `the yard answered ${status}`);
});
